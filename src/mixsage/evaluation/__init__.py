"""What a trained model is worth: functions of a model and data that return numbers; they print and write nothing."""
