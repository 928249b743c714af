-- What the owner is asked before it is done, and what they decided.

-- Written by the turn that asks, by whoever decides, and by the turn again when it uses the word it was given.
-- Deleted by a later question, 30 days after they were asked.
CREATE TABLE approval (
    id         TEXT    NOT NULL PRIMARY KEY,       -- short, for typing
    session    TEXT    NOT NULL,                   -- whose turn asks
    turn       TEXT    NOT NULL,
    call_id    TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    tool       TEXT    NOT NULL,
    digest     TEXT    NOT NULL,                   -- of the tool, its exact arguments, the folder and the program's file
    asker      TEXT    NOT NULL,                   -- channel and sender id
    shown_in   TEXT,                               -- the session of the chat in which the owner was asked; NULL: none
    state      TEXT    NOT NULL,                   -- pending, approved, denied, expired, used
    row        TEXT    NOT NULL,                   -- all that is shown of it, JSON
    upto       INTEGER NOT NULL,                   -- message.seq: what the turn had before it when it asked
    decided_by TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    decided_at INTEGER
) WITHOUT ROWID;
CREATE INDEX approval_turn ON approval (turn, digest);
CREATE INDEX approval_session ON approval (session);
CREATE INDEX approval_pending ON approval (shown_in) WHERE state = 'pending';

-- What was approved for good: exactly this, for exactly this asker. Written by a decision, deleted by nobody.
CREATE TABLE approval_always (
    agent      TEXT    NOT NULL,
    asker      TEXT    NOT NULL,
    tool       TEXT    NOT NULL,
    digest     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (agent, asker, tool, digest)
) WITHOUT ROWID;
