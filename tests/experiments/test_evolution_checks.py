"""What no evolution would do is refused before anything is built."""

from __future__ import annotations

import pytest

from cojax.run.checks import check_settings
from experiments import desk


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"synthesis.prefix_replay": True, "evolve": "frontier", "learner.routes": "compared"},
            "synthesis.prefix_replay is True, but learner.routes is 'compared'",
        ),
        (
            {"synthesis.prefix_replay": True, "evolve": "posteriors"},
            "synthesis.prefix_replay is True, but evolve is 'posteriors': only frontier finds",
        ),
        (
            {"synthesis.prefix_replay": True, "method": "rft"},
            "synthesis.prefix_replay is True, but method is 'rft': only coevolve replays prefixes",
        ),
        (
            {"synthesis.admit": "probe", "evolve": "none"},
            "synthesis.admit is 'probe', but evolve is 'none': there are no candidates; set --config.evolve=uniform",
        ),
        (
            {"synthesis.admit": "probe", "method": "rft"},
            "synthesis.admit is 'probe', but with method=rft the task set does not grow: there are no candidates; set "
            "--config.preference.tasks=growing, or --config.synthesis.admit=all",
        ),
        ({"signals": ""}, "evolve is 'feedback', but signals is empty: there is nothing to follow; set --config.sig"),
        ({"signals": "", "evolve": "displaced"}, "evolve is 'displaced', but signals is empty"),
    ],
)
def test_a_contradiction_names_both_settings_and_the_mend(settings: dict[str, object], reason: str) -> None:
    config = desk.get_config()
    config.update_from_flattened_dict(settings)
    with pytest.raises(ValueError, match=reason):
        check_settings(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"synthesis.prefix_replay": True, "evolve": "frontier"},
        {"synthesis.admit": "probe", "method": "rft", "preference.tasks": "growing"},
        {"signals": "", "evolve": "uniform"},
        {"signals": "", "method": "sft"},
    ],
)
def test_what_can_be_done_is_not_refused(settings: dict[str, object]) -> None:
    config = desk.get_config()
    config.update_from_flattened_dict(settings)
    check_settings(config)
