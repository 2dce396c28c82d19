"""Learners: the law and its slots, backbones, readouts, and a trained model."""
