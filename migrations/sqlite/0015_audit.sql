-- What was done and decided, and whether anything new may be begun.

-- One row an effect step's start or end, an approval, a decision about who may write, a grant, a log-in, a halt.
-- Written with what it tells of, in one transaction. Never changed, never deleted: each row's hash covers the one before.
CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY,                    -- 1, 2, 3 … without a gap
    at     INTEGER NOT NULL,
    kind   TEXT    NOT NULL,
    who    TEXT    NOT NULL,                       -- who did it: channel and sender id, `console`, `gateway`
    what   TEXT    NOT NULL,
    detail TEXT    NOT NULL,                       -- canonical JSON
    prev   TEXT    NOT NULL,                       -- the hash of the row before; 64 zeros for the first
    hash   TEXT    NOT NULL                        -- sha256(prev || canonical row), hex
);
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

-- One row: the newest audit row, so that rows cut off the end are missed. It only goes forward.
CREATE TABLE audit_head (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    seq  INTEGER NOT NULL,
    hash TEXT    NOT NULL
);
INSERT INTO audit_head (id, seq, hash)
VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');
CREATE TRIGGER audit_head_forward BEFORE UPDATE ON audit_head
WHEN NEW.seq <= OLD.seq OR NOT EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq AND hash = NEW.hash)
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_head_stays BEFORE DELETE ON audit_head
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

-- No row = the gateway works; one row = it begins nothing new.
CREATE TABLE halt (
    id  INTEGER PRIMARY KEY CHECK (id = 1),
    at  INTEGER NOT NULL,
    who TEXT    NOT NULL
);
