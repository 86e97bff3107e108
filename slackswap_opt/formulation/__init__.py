"""Formulation."""
