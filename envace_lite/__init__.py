"""envace_lite: world rehearsal in small. See the README for the idea and the order in which to read the modules."""

import os

# Before torch is imported: waiting threads must not eat a working core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from envace_lite import interrupts
from envace_lite.evaluate import Report
from envace_lite.fidelity import compare, probe, probe_pairs, rehearse
from envace_lite.model.policy import Policy, load_policy, new_policy, with_lora
from envace_lite.rehearsal import Gate
from envace_lite.rehearsal.private import PrivateRehearsal
from envace_lite.reward import answer_only, end_at_error, task_success
from envace_lite.rollout import Execute, Rehearse, Simulate, Trajectory
from envace_lite.train import TrainConfig, TrainLog
from envace_lite.world import (
    DOMAINS,
    Domain,
    Session,
    Task,
    ToyDomain,
    get_domain,
    load_tasks,
    paths,
    register,
)
from envace_lite.world.result import Result
from envace_lite.world.shipped import shipped_tasks
from envace_lite.world.tools import Tool, ToolCall, ToolError, ToolResponse, World

__version__ = "0.2.0"

__all__ = [
    "DOMAINS",
    "Domain",
    "Execute",
    "Gate",
    "Policy",
    "PrivateRehearsal",
    "Rehearse",
    "Report",
    "Result",
    "Session",
    "Simulate",
    "Task",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResponse",
    "ToyDomain",
    "TrainConfig",
    "TrainLog",
    "Trajectory",
    "World",
    "answer_only",
    "compare",
    "end_at_error",
    "get_domain",
    "interrupts",
    "load_policy",
    "load_tasks",
    "new_policy",
    "paths",
    "probe",
    "probe_pairs",
    "register",
    "rehearse",
    "shipped_tasks",
    "task_success",
    "with_lora",
]
