"""The gate before the commit: do a partition's figures let it become visible? Pure functions of numbers."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from batch_job.launch import spark_submit
from batch_job.run_record import Agreement, Findings, Outcome, Verdict
from shared_model.errors import Refused

#: Shares of labels are not compared below so many rows, nor answers below so many texts: the verdict would be chance.
FEWEST = 1_000
#: Population stability index, beyond twice what chance alone makes of it.
PSI_WARN, PSI_FAIL = 0.10, 0.25
#: A label that is rarer counts as if it had this share: of a label's first rows the logarithm would make a landslide.
PSI_FLOOR = 1e-4

#: Least agreement of INT8 where half precision is clear, and fewest such texts that show it: six may differ. Clear is
#: `shared_model.evaluation.agreement.CLEAR_MARGIN`: of 8,000 chat messages, which have no banking intent, the two agree
#: on 99.93 % of the half that is clear by 0.10, on 99.3 % by 0.05, on 97.4 % by 0.02, and on 92.5 % of all; samples of
#: 2,000 have the last between 91.3 and 92.9.
CLEAR_AGREEMENT, FEWEST_CLEAR = 0.985, 400
#: Most points that agreement on all texts may fall from one day to the next.
MOST_POINTS_LOST = 3.0

#: Gates whose failure a person may accept. The others hold what every reader relies on, or have a setting.
LABELS, CLEAR, ALL = ACCEPTABLE = spark_submit.ACCEPTABLE
COUNTS, FINITE, QUARANTINE = "counts", "finite", "quarantine"
#: The measure in words: few readers of a refusal have met it.
PSI = "PSI (population stability index: how far the distribution of labels has moved)"
NO_EARLIER_DAY = "no earlier day of this input is committed, so there is nothing to compare with"


class GateFailed(Refused):
    """A gate refuses the partition; `findings` hold all verdicts. `staged`: see `RunRecord`."""

    def __init__(self, findings: Findings, problem: str) -> None:
        super().__init__(problem)
        self.findings = findings
        self.staged = ""


def counts(planned: int, reported: int, found: int, quarantined: int) -> Verdict:
    """Lines in must be rows written plus lines quarantined, and tasks must report the rows that the files hold."""
    missing = abs(planned - found - quarantined) + abs(reported - found)
    line = f"{planned:,} lines in, {found:,} rows written ({reported:,} reported), {quarantined:,} quarantined"
    return Verdict(COUNTS, _judge(missing > 0), missing, "0 rows apart", line)


def quarantine(lines: int, quarantined: int, most: float) -> Verdict:
    """`most`: share of the lines that may be quarantined."""
    share = quarantined / lines if lines else 0.0
    line = f"{quarantined:,} of {lines:,} lines are quarantined"
    return Verdict(QUARANTINE, _judge(share > most), share, f"at most {most:.1%} (TANDEM_QUARANTINE_SHARE)", line)


def finite(rows: int, not_finite: int) -> Verdict:
    """`not_finite`: scores that are NaN or infinite, of all that the rows hold."""
    line = f"{not_finite:,} scores of {rows:,} rows are NaN or infinite"
    return Verdict(FINITE, _judge(not_finite > 0), not_finite, "none", line)


def labels(now: Mapping[str, int], before: Mapping[str, int], known: Collection[str], before_ds: str) -> Verdict:
    """The distribution of labels, label → rows, against that of an earlier day. `known`: the labels of the release."""
    if not before:
        return _report_only(LABELS, NO_EARLIER_DAY)
    if strangers := before.keys() - set(known):
        return _report_only(LABELS, f"ds={before_ds} has other labels, {min(strangers)} for one")
    rows, rows_before = sum(now.values()), sum(before.values())
    value, chance = psi(now, before), 2 * expected_psi(now, before) if rows else 0.0
    line = f"{PSI} {value:.3f} against ds={before_ds}, {rows:,} and {rows_before:,} rows"
    if min(rows, rows_before) < FEWEST:
        return _report_only(LABELS, f"{line}: too few to judge by", value)
    warn, fail = PSI_WARN + chance, PSI_FAIL + chance
    return Verdict(LABELS, _judge(value > fail, value > warn), value, f"warn > {warn:.3f}, fail > {fail:.3f}", line)


def clear_agreement(agreement: Agreement | None) -> Verdict:
    """INT8 against half precision where that is clear; None where the release has no INT8."""
    if agreement is None:
        return Verdict(CLEAR, Outcome.UNPROVEN, None, "", "the release has no INT8 to compare")
    value = agreement.clear_share
    of_head = f", as head {agreement.head}" * bool(agreement.head)
    line = f"INT8 says the same on {value:.2%} of {agreement.clear:,} clear texts of {agreement.texts:,}{of_head}"
    if agreement.texts < FEWEST or agreement.clear < FEWEST_CLEAR:
        return _report_only(CLEAR, f"{line}: too few to judge by", value)
    return Verdict(CLEAR, _judge(value < CLEAR_AGREEMENT), value, f"at least {CLEAR_AGREEMENT:.1%}", line)


def agreement_drop(agreement: Agreement | None, before: float | None, before_ds: str) -> Verdict:
    """Agreement on all texts against that of an earlier day, `before`, None where that is not known."""
    if agreement is None:
        return Verdict(ALL, Outcome.UNPROVEN, None, "", "the release has no INT8 to compare")
    line = f"INT8 says the same on {agreement.share:.2%} of {agreement.texts:,} texts"
    if before is None:
        return _report_only(ALL, f"{line}; {f'it is not known of ds={before_ds}' if before_ds else NO_EARLIER_DAY}")
    # As exact as a commit keeps it: what is just at the bound must not fail by the last bit.
    lost = round(100 * (before - agreement.share), 4)
    line = f"{line}, on {before:.2%} at ds={before_ds}"
    if agreement.texts < FEWEST:
        return _report_only(ALL, f"{line}: too few to judge by", lost)
    return Verdict(ALL, _judge(lost > MOST_POINTS_LOST), lost, f"at most {MOST_POINTS_LOST:g} points fewer", line)


def psi(now: Mapping[str, int], before: Mapping[str, int]) -> float:
    """Population stability index of two distributions, label → rows: 0 where shares are equal, the same either way."""
    shares, were = _shares(now), _shares(before)
    both = [(shares.get(it, PSI_FLOOR), were.get(it, PSI_FLOOR)) for it in sorted(now.keys() | before.keys())]
    return sum((share - was) * math.log(share / was) for share, was in both)


def expected_psi(now: Mapping[str, int], before: Mapping[str, int]) -> float:
    """Average of the index if both days are drawn from one distribution: (k - 1)(1/n₁ + 1/n₂)."""
    kinds = sum(1 for label in now.keys() | before.keys() if now.get(label) or before.get(label))
    return (kinds - 1) * (1 / sum(now.values()) + 1 / sum(before.values()))


def accept(verdicts: Sequence[Verdict], accepted: Collection[str]) -> tuple[Verdict, ...]:
    """The verdicts, those failures marked that a person lets pass."""
    return tuple(
        replace(verdict, accepted=True)
        if verdict.outcome is Outcome.FAIL and verdict.gate in accepted and verdict.gate in ACCEPTABLE
        else verdict
        for verdict in verdicts
    )


def acceptable(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The gates that refuse the partition, if a person may accept all of them; else none."""
    refusing = tuple(verdict.gate for verdict in verdicts if verdict.refuses)
    return refusing if set(refusing) <= set(ACCEPTABLE) else ()


def reasons(verdicts: Sequence[Verdict]) -> str:
    """Why the partition is refused, in one line; empty when it is not."""
    return "; ".join(f"{it.gate}: {it.line} ({it.bound})" for it in verdicts if it.refuses)


def refusal(ds: str, verdicts: Sequence[Verdict]) -> str:
    """Why the partition must not become visible and what a person may do, in one line; empty when it may."""
    if not (why := reasons(verdicts)):
        return ""
    flags = " ".join(f"--accept {gate}" for gate in acceptable(verdicts))
    advice = f"; if that is as it should be, `python -m batch_job commit --ds {ds} {flags}`" if flags else ""
    return f"ds={ds}: refused by the gate, nothing committed: {why}{advice}"


def _shares(rows: Mapping[str, int]) -> dict[str, float]:
    total = sum(rows.values())
    return {label: max(count / total, PSI_FLOOR) for label, count in rows.items() if count}


def _judge(fails: bool, warns: bool = False) -> Outcome:
    return Outcome.FAIL if fails else Outcome.WARN if warns else Outcome.OK


def _report_only(gate: str, line: str, value: float | None = None) -> Verdict:
    return Verdict(gate, Outcome.REPORT_ONLY, value, "", line)
