//! Telegram: what the Bot API delivers becomes inbound events, and answers become its messages.
