//! Telegram: what the Bot API delivers becomes inbound events, and answers become its messages.

mod api;
mod config;

pub use api::{Api, ApiError};
pub use config::{Config, ConfigError, Limits, Mode, Secret};
