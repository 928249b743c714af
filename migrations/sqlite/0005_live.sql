-- What a person sees of an answer before it is whole.

-- The preview whose place a part takes, with the first part of a reply. Written by finish, release and replace_parts.
ALTER TABLE outbox ADD COLUMN replaces TEXT;

-- What a turn shows of its answer: `Shown` as JSON. Written by keep_preview; emptied by finish and release when the answer
-- takes its place, and by forget_preview once it was taken away.
ALTER TABLE turn ADD COLUMN preview TEXT;
CREATE INDEX turn_preview ON turn (seq) WHERE preview IS NOT NULL;
