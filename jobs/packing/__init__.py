# SPDX-License-Identifier: Apache-2.0
"""What jobs/pack.py is made of: a reader for each format, which gives entries; records, into which all
entries turn; the items that these name; the tokens of their turns; and the work of many processes."""
