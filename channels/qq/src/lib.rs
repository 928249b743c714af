//! the official QQ bot.
