"""Measurements that print tables. They assert nothing; tests assert, and time nothing."""
