//! `[store]`: where the durable rows are.

use serde::{Deserialize, Serialize};

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// `sqlite://<path>`, relative to the configuration file.
    pub url: String,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { url: "sqlite://data/crawfish.db".to_owned() }
    }
}

impl StoreConfig {
    /// Whether the address names a database file. Checked when the configuration is read.
    pub fn is_sqlite(&self) -> bool {
        self.url.strip_prefix("sqlite://").is_some_and(|path| !path.is_empty() && !path.contains(['?', '\0']))
    }

    /// The database file, relative to the configuration file.
    pub fn sqlite_path(&self) -> &str {
        self.url.strip_prefix("sqlite://").unwrap_or(&self.url)
    }
}
