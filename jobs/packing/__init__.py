# SPDX-License-Identifier: Apache-2.0
"""The parts of jobs/pack.py: a reader of entries for each format; records, into which all entries are converted; the
items that these name; the tokens of their turns; and the work of many processes."""
