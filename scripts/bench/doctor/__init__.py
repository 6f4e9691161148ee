"""Silence of the doctor: it must find nothing in trainings that are written as they should be."""
