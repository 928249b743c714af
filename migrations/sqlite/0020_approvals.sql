-- What was approved for good can be listed and taken back.

-- Written by a decision; deleted by whoever takes it back.
ALTER TABLE approval_always ADD COLUMN id TEXT;                -- short, for typing: that of the request it was given to
ALTER TABLE approval_always ADD COLUMN row TEXT;               -- the request as it was shown, JSON; NULL: not known any more
UPDATE approval_always SET
    id = coalesce((SELECT a.id FROM approval a WHERE a.digest = approval_always.digest AND a.asker = approval_always.asker
                   AND a.decided_at = approval_always.created_at), lower(hex(randomblob(4)))),
    row = (SELECT a.row FROM approval a WHERE a.digest = approval_always.digest AND a.asker = approval_always.asker
           AND a.decided_at = approval_always.created_at);
CREATE UNIQUE INDEX approval_always_id ON approval_always (id);
