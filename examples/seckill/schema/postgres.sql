CREATE TABLE IF NOT EXISTS vouchers (
    code          TEXT PRIMARY KEY,
    initial_stock BIGINT NOT NULL,
    stock         BIGINT NOT NULL
);

-- No unique index on (voucher, user_id): the lock is on trial here. Production adds one.
CREATE TABLE IF NOT EXISTS orders (
    id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    voucher  TEXT NOT NULL REFERENCES vouchers (code),
    user_id  BIGINT NOT NULL,
    instance TEXT NOT NULL,
    fence    BIGINT
);
CREATE INDEX IF NOT EXISTS orders_by_voucher_and_user ON orders (voucher, user_id);

-- The largest fencing token that has written under each lock key.
CREATE TABLE IF NOT EXISTS fences (
    resource TEXT PRIMARY KEY,
    token    BIGINT NOT NULL
);
