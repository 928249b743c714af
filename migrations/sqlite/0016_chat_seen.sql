-- Chats by when somebody wrote there: what a word to another chat is looked up in.
CREATE INDEX chat_seen ON chat (seen_at);
