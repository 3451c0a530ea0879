"""A report as JUnit XML, which CI systems read: a suite per area, a test case per law and kind."""

from __future__ import annotations

from itertools import groupby
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from kvconform.conformance.report.document import Report, Result
from kvconform.conformance.report.words import (
    clean,
    describe_expected,
    describe_result,
    describe_subject,
    find_sentence,
    name_pair,
)

SKIPPED = ("unsupported", "expected")


def encode_junit(report: Report) -> bytes:
    """The report as XML. What is not as expected, and what did not run, are test cases, too."""
    root = Element("testsuites", name=f"kvconform {describe_subject(report.implementation)}")
    for area, results in groupby(report.results, key=lambda one: one.law.partition("/")[0]):
        suite = SubElement(root, "testsuite", name=f"kvconform.{area}")
        properties = SubElement(suite, "properties")
        for name, value in _facts(report).items():
            SubElement(properties, "property", name=name, value=clean(value))
        for result in results:
            _add_result(suite, result, report)
    rest = SubElement(root, "testsuite", name="kvconform.run")
    for finding in report.findings:
        named = f"{finding.fault} {name_pair(finding.law, finding.kind)} {finding.entry}".strip()
        case = _add_case(rest, "expectations", named)
        _add(case, "failure", finding.fault, finding.describe())
    case = _add_case(rest, "run", "complete")
    if not report.complete:
        missing = report.selected - len(report.results)
        _add(case, "error", "incomplete", f"{missing} of {report.selected} pairs of law and kind did not run")
    for suite in (*root, root):
        for attribute, tag in {
            "tests": "testcase",
            "failures": "failure",
            "errors": "error",
            "skipped": "skipped",
        }.items():
            suite.set(attribute, str(len(list(suite.iter(tag)))))
    indent(root)
    text: str = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _facts(report: Report) -> dict[str, str]:
    return {
        "implementation": report.implementation.address,
        "version": report.implementation.version,
        "kvconform": report.kvconform,
        "profile": report.profile,
        "seed": str(report.seed),
    }


def _add_result(suite: Element, result: Result, report: Report) -> None:
    case = _add_case(suite, suite.get("name", ""), name_pair(result.law, result.kind))
    text = "\n".join(part for part in (find_sentence(result.law), describe_result(result)) if part)
    if result.verdict == "broken":
        _add(case, "error", "broken", result.message, text)
    elif result.verdict in SKIPPED:
        why = describe_expected(result) if result.known else result.message
        _add(case, "skipped", result.verdict, f"{result.verdict}: {why}" if why else result.verdict)
    elif result.verdict in ("violated", "inconclusive"):
        if result.severity in report.fail_on:
            _add(case, "failure", result.verdict, result.message, text)
        else:
            # A CI system takes every failure for one of the run.
            told = f"{result.verdict}, reported only ({result.severity}): {result.message}"
            _add(case, "skipped", result.verdict, told)
    stderr = report.stderr.get(f"{result.law} {result.kind}", "")
    if stderr:
        SubElement(case, "system-err").text = clean(stderr)


def _add_case(suite: Element, group: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=group, name=clean(name), time="0")


def _add(case: Element, tag: str, kind: str, message: str, text: str = "") -> None:
    added = SubElement(case, tag, type=kind, message=clean(" ".join(message.split())))
    added.text = clean(text) or None
