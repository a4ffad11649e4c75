CREATE TABLE IF NOT EXISTS vouchers (
    code          TEXT PRIMARY KEY,
    initial_stock INTEGER NOT NULL,
    stock         INTEGER NOT NULL
);

-- No unique index on (voucher, user_id): the lock is on trial here. Production adds one.
CREATE TABLE IF NOT EXISTS orders (
    id       INTEGER PRIMARY KEY,
    voucher  TEXT NOT NULL REFERENCES vouchers (code),
    user_id  INTEGER NOT NULL,
    instance TEXT NOT NULL,
    fence    INTEGER
);
CREATE INDEX IF NOT EXISTS orders_by_voucher_and_user ON orders (voucher, user_id);

-- The largest fencing token that has written under each lock key.
CREATE TABLE IF NOT EXISTS fences (
    resource TEXT PRIMARY KEY,
    token    INTEGER NOT NULL
);
