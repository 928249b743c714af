//! `[skills]`: where skills are, and what each is given.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hub::config::HubsConfig;
use crate::secrets::Secret;

/// `[skills]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SkillsConfig {
    /// Folders with skills, relative to the configuration file; `~` is the home folder.
    pub dirs: Vec<String>,
    /// `[skills.entries.<key>]`: what one skill is given. Shown from the file, where its secrets are masked.
    #[serde(skip_serializing)]
    pub entries: BTreeMap<String, SkillConfig>,
    /// Where skills are installed from.
    pub hubs: HubsConfig,
}

impl Default for SkillsConfig {
    fn default() -> Self {
        Self { dirs: vec!["skills".to_owned()], entries: BTreeMap::new(), hubs: HubsConfig::default() }
    }
}

/// `[skills.entries.<key>]`; the key is the skill's name, or its `skillKey`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SkillConfig {
    /// `false` switches it off.
    pub enabled: Option<bool>,
    /// The value of the variable that the skill names as its `primaryEnv`.
    #[serde(alias = "apiKey")]
    pub api_key: Option<Secret>,
    /// Environment variables for its commands.
    pub env: BTreeMap<String, Secret>,
    /// Its own settings, for `requires.config`.
    pub config: toml::Table,
}
