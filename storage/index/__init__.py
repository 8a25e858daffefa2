"""The database: connections, transactions, locks, ids, pages, events, counters, migrations."""
