-- What a message is when no person wrote it: work the gateway gave itself (a reminder, a heartbeat, a hook, a sub-agent).

-- `Errand` as JSON; NULL = a person wrote it. Written by accept and by whatever stores an errand in a transaction of its own.
ALTER TABLE inbox ADD COLUMN errand TEXT;
