-- Who was let in and who was shut out. Rights follow the channel (`<kind>:<account>`) and the platform's immutable sender
-- id, never a name. Times are epoch milliseconds.

-- One row a stranger who asked to be let in: at most three of a channel wait, an hour each.
-- Written by accept (creates) and reject. Deleted by approve, block and prune, and by accept when somebody else asks on the
-- same channel and its hour is over.
CREATE TABLE pairing (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    channel    TEXT    NOT NULL,
    sender     TEXT    NOT NULL,
    name       TEXT,                               -- for people; never compared
    code       TEXT    NOT NULL UNIQUE,
    lang       TEXT    NOT NULL,                   -- en zh: what they are told in
    address    TEXT    NOT NULL,                   -- Address as JSON: where they hear that they were let in
    rejected   INTEGER NOT NULL DEFAULT 0,         -- hears nothing more until the hour is over; does not count as waiting
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    UNIQUE (channel, sender)
);

-- One row a person who was let in.
-- Written by approve. Deleted by revoke and block.
CREATE TABLE approved (
    channel    TEXT    NOT NULL,
    sender     TEXT    NOT NULL,
    name       TEXT,                               -- for people; never compared
    role       TEXT    NOT NULL,                   -- member trusted owner
    code       TEXT    NOT NULL,                   -- approving it twice is once
    created_at INTEGER NOT NULL,
    PRIMARY KEY (channel, sender)
) WITHOUT ROWID;

-- One row a sender who is shut out.
-- Written by block. Deleted by unblock.
CREATE TABLE blocked (
    scope      TEXT    NOT NULL,                   -- `<kind>:<account>`, or `<kind>` for every account of it
    sender     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (scope, sender)
) WITHOUT ROWID;
