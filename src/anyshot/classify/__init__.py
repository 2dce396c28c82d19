"""The few-shot classifier: fit, calibrate, save, load, export; on features and on pictures."""
