"""Where does a recorded step lose time, and which controls win it back?

python examples/recorded_step/plan_a_step.py [TRACE...]
"""

import sys
from pathlib import Path

from makeway import NothingToPlan, analyze, control_word, plan_recorded

recording = Path(__file__).parents[1] / "recordings" / "cb-ar"
traces = [Path(name) for name in sys.argv[1:]] or [recording]

analysis = analyze(traces, what_if=False)
worst = analysis.worst
print(f"rank {worst.rank} exposes {worst.figures.exposed_ns / 1e6:.1f} ms of communication; causes of time lost:")
for group in analysis.groups[:2]:
    print(f"  {group.kind}: {group.most_on_one_rank_ns / 1e6:.1f} ms ({group.of}, {group.confidence} confidence)")

plan = plan_recorded(traces, destination="run")
if isinstance(plan, NothingToPlan):
    sys.exit(f"nothing to plan: {plan.reason}")
print("controls that `makeway run` can apply:")
for control, reason in zip(plan.controls, plan.reasons, strict=True):
    print(f"  {control_word(control)}: {reason}")
