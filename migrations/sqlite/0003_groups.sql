-- Groups: what was said in them but not to the bot, and groups whose id the platform changed.

-- One row an unaddressed message, kept as context for the next turn of its session. Once it was part of a finished turn,
-- or is over its group's `history`, its words go (`text` NULL) and only the key stays for a while, so that a second
-- delivery is not heard as news.
-- Written by accept (creates, empties what is over the bound), claim (`turn`), finish, recover, reset (empty), accept of
-- a move (`session`). Deleted by accept (over the bounds) and prune.
CREATE TABLE heard (
    seq         INTEGER PRIMARY KEY,
    channel     TEXT    NOT NULL,
    platform_id TEXT    NOT NULL,
    session     TEXT    NOT NULL,                  -- the session's key: it may have no row yet
    sender      TEXT    NOT NULL,
    name        TEXT,
    text        TEXT,                              -- NULL: told or forgotten
    turn        TEXT,                              -- the turn that was given it
    at          INTEGER NOT NULL,
    UNIQUE (channel, platform_id)
);
CREATE INDEX heard_live    ON heard (session, seq) WHERE text IS NOT NULL;
CREATE INDEX heard_session ON heard (session, seq);

-- One row a group that got a new id: its section of the configuration goes on to hold.
-- Written by accept. Never deleted.
CREATE TABLE moved (
    channel TEXT    NOT NULL,
    old     TEXT    NOT NULL,
    new     TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (channel, old)
) WITHOUT ROWID;
