"""Workloads: descriptions of training runs, and the steps built from them."""

from slackswap_opt.workloads.describe import Workload, with_changes
from slackswap_opt.workloads.library import load_workload, workload_names
from slackswap_opt.workloads.saved import SavedTensor, saved_by_layer, saved_tensors
from slackswap_opt.workloads.transformer import build_step

__all__ = [
    "SavedTensor",
    "Workload",
    "build_step",
    "load_workload",
    "saved_by_layer",
    "saved_tensors",
    "with_changes",
    "workload_names",
]
