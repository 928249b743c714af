//! `crawfish doctor`: what is wrong, and every closed door with the line that opens it.

use std::{path::Path, sync::Arc, time::Duration};

use channel_api::Clock;
use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{config::model_problem, exit::Exit, reach, reach::Reach, show};
use crate::{
    app,
    clock::SystemClock,
    config::{
        Env, Loaded,
        doors::{self, DoorState, doors, with_access, with_turned_away},
    },
    intake::pairing::{AccessQuery, Pairings},
    lang::{self, Lang},
    model::{self, Message, ModelRequest},
    store::Store,
};

mod machine;
mod work;

/// One line: whether it is as it should be, and what it is.
type Finding = (bool, String);

fn good(text: String) -> Finding {
    (true, text)
}

fn bad(text: String) -> Finding {
    (false, text)
}

/// Looks for what is wrong or still closed. 检查问题和未开启的功能。
#[derive(Debug, Args)]
pub struct Doctor {
    /// Ask no model. 不访问模型。
    #[arg(long)]
    offline: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    /// Exits 0 when a gateway could work here (closed doors are not wrong), else with what a start would end with: 78 for
    /// the configuration, 65 or 69 for the store or a model, 71 for a taken address, 74 for a workspace that cannot be
    /// written.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        reach::block_on(self.examine(&loaded))
    }

    async fn examine(&self, loaded: &Loaded) -> Exit {
        let lang = Lang::current();
        let mut exit = Exit::Ok;
        let now = SystemClock::new().now_ms();
        let mut findings: Vec<Finding> = Vec::new();
        let mut access = Pairings::default();
        let mut places = Vec::new();
        match &loaded.source {
            Some(file) => findings.push((true, lang::config_fine(lang, file.display()))),
            None => findings.push((true, lang::config_none(lang))),
        }
        findings.extend(loaded.warnings.iter().map(|warning| (false, warning.render(lang))));

        match reach::running(loaded) {
            Ok(Some(client)) => {
                findings.push((true, lang::doctor_running(lang, client.url())));
                if let Ok(found) = client.ask(&AccessQuery::Pairings.request()).await {
                    access = serde_json::from_value(found).unwrap_or_default();
                }
                findings.extend(work::channels(&client, lang).await);
                places = work::turned_away(&client).await;
                match work::rows(&Reach::Gateway(client), now, lang).await {
                    Ok(found) => findings.extend(found),
                    Err(code) => exit = code,
                }
            }
            Ok(None) => {
                let (found, code) = machine::addresses(loaded, lang);
                findings.extend(found);
                exit = code;
                let file = loaded.path(loaded.config.store.sqlite_path());
                if !file.exists() {
                    findings.push((true, lang::doctor_no_store(lang, file.display())));
                } else {
                    match Reach::open(loaded).await {
                        Ok(reach) => {
                            let checked = match &reach {
                                Reach::Store { store, .. } => store.check().await,
                                Reach::Gateway(_) => Ok(()),
                            };
                            if let (Reach::Store { store, .. }, Ok(())) = (&reach, &checked) {
                                access = who_waits(loaded, store).await.unwrap_or_default();
                            }
                            let rows = match &checked {
                                Ok(()) => work::rows(&reach, now, lang).await.unwrap_or_default(),
                                Err(_) => Vec::new(),
                            };
                            reach.close().await;
                            match checked {
                                Ok(()) => {
                                    findings.push((true, lang::doctor_store_fine(lang, file.display())));
                                    findings.extend(rows);
                                }
                                Err(error) => {
                                    findings.push((false, error.to_string()));
                                    exit = Exit::Data;
                                }
                            }
                        }
                        Err(code) => exit = code,
                    }
                }
            }
            Err(code) => exit = code,
        }

        let skills = app::look_at_skills(loaded);
        let (found, code) = machine::workspaces(loaded, &skills, lang);
        findings.extend(found);
        if exit == Exit::Ok {
            exit = code;
        }
        findings.extend(machine::permissions(loaded, lang));
        findings.extend(machine::skills(&skills, lang));
        findings.extend(machine::tools(loaded, lang));

        if let Some(problem) = model_problem(loaded) {
            findings.push((false, problem));
            exit = Exit::Config;
        } else if !self.offline {
            for (name, model) in &loaded.config.models {
                if model.is_ollama() && model.context_tokens.is_none() {
                    findings.push((false, lang::doctor_ollama_context(lang, name)));
                }
            }
            for (name, answer) in ask_models(loaded).await {
                match answer {
                    Ok(()) => findings.push((true, lang::doctor_model_answers(lang, name))),
                    Err(why) => {
                        findings.push((false, lang::doctor_model_silent(lang, name, why)));
                        if exit == Exit::Ok {
                            exit = Exit::Unavailable;
                        }
                    }
                }
            }
        }

        let (since_opened, closed): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|place| doors::opens(&loaded.config, place));
        for door in with_turned_away(&[], &since_opened, now, lang) {
            findings.push(bad(lang::door_since_opened(lang, &door.line)));
        }
        let doors = with_turned_away(&with_access(&doors(&loaded.config, lang), &access, lang), &closed, now, lang);
        if self.json {
            let findings: Vec<_> = findings.iter().map(|(ok, text)| json!({ "ok": ok, "text": text })).collect();
            show::json(&json!({ "findings": findings, "doors": doors }));
            return exit;
        }
        for (ok, text) in findings {
            show::line(&format!("{} {text}", if ok { "✓" } else { "✗" }));
        }
        for door in doors {
            let mark = if door.state == DoorState::Closed { "○" } else { "!" };
            show::line(&format!("{mark} {}\n    {}", door.text, door.line));
        }
        exit
    }
}

/// Who waits to be let in, read without a gateway.
async fn who_waits(loaded: &Loaded, store: &Arc<dyn Store>) -> Option<Pairings> {
    let channels = app::build_channels(loaded).ok()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let access = app::open_access(store, &channels, &clock, Default::default()).await.ok()?;
    access.pairings().await.ok()
}

/// Asks each configured model one short question, all at once. An answer shows that address, key, model and money are right,
/// which a list of models would not.
async fn ask_models(loaded: &Loaded) -> Vec<(String, Result<(), String>)> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let Ok(models) = model::config::build_all(&loaded.config.models, &clock, &loaded.dir) else { return Vec::new() };
    let request = ModelRequest {
        system: "Answer with one word.".to_owned(),
        messages: vec![Message::User { text: "ping".to_owned() }],
        tools: Vec::new(),
        max_tokens: Some(16),
    };
    let request = &request;
    let asked = models.into_iter().map(|(name, model)| async move {
        let cancel = CancellationToken::new();
        let asked = tokio::time::timeout(Duration::from_secs(20), model.complete(request, &(), &cancel)).await;
        let lang = Lang::current();
        let answer = match asked {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.cause().map_or_else(|| error.to_string(), |cause| cause.detail(lang))),
            Err(_) => Err(lang::doctor_no_answer(lang, 20)),
        };
        (name, answer)
    });
    futures_util::future::join_all(asked).await
}
