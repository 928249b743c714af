//! `crawfish doctor`: what is wrong, and every closed door with the line that opens it.

use std::{path::Path, sync::Arc, time::Duration};

use channel_api::{ChannelId, Clock};
use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{config::model_problem, exit::Exit, mcp, probe, reach, reach::Reach, show};
use crate::{
    app,
    clock::SystemClock,
    config::{
        Env, Loaded,
        doors::{self, Door, DoorState, doors, with_access, with_turned_away},
    },
    inspect::Query,
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
    /// Ask no model and look up no names. 不访问模型，也不解析域名。
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
        let mut halted = false;
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
                findings.extend(work::channels(&client, now, lang).await);
                places = work::turned_away(&client).await;
                let gateway = Reach::Gateway(client);
                halted = gateway.value(&Query::Halted).await.is_ok_and(|answer| !answer["halted"].is_null());
                match work::rows(&gateway, now, lang).await {
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
                                halted = store.halted().await.is_ok_and(|halted| halted.is_some());
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
        findings.push(machine::sandbox(loaded, lang).await);
        findings.extend(mcp::findings(loaded, lang));
        if !self.offline {
            let enabled = loaded.config.channels.iter().filter(|(_, section)| section.policy.enabled);
            for (id, section) in enabled {
                for found in probe::names(id, section).await {
                    let fix = found.fix.as_ref().map_or("", |fix| lang.of(fix));
                    let stop = if lang == Lang::Zh { "。" } else { ". " };
                    findings.push(bad(format!("{id}{}{}{stop}{fix}", lang.colon(), lang.of(&found.said))));
                }
            }
        }

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
        let gate = |channel: &ChannelId| doors::gate(&loaded.config, channel);
        for door in with_turned_away(&[], &since_opened, gate, now, lang) {
            findings.push(bad(lang::door_since_opened(lang, door.line.replace('\n', " "))));
        }
        let doors = with_access(&doors(&loaded.config, lang), &access, lang);
        let mut doors = with_turned_away(&doors, &closed, gate, now, lang);
        if halted {
            let (name, line) = ("halted".to_owned(), "crawfish resume".to_owned());
            doors.insert(0, Door { name, state: DoorState::Closed, text: lang::halt_said(lang), line });
        }
        if self.json {
            let findings: Vec<_> = findings.iter().map(|(ok, text)| json!({ "ok": ok, "text": text })).collect();
            show::json(&json!({ "findings": findings, "doors": doors }));
            return exit;
        }
        for (ok, text) in findings {
            show::line(&format!("{} {text}", if ok { "✓" } else { "✗" }));
        }
        let explained = doors.iter().any(|door| door.line.starts_with('['));
        for door in doors {
            let mark = if door.state == DoorState::Closed { "○" } else { "!" };
            show::line(&format!("{mark} {}\n    {}", door.text, door.line.replace('\n', "\n    ")));
        }
        if explained {
            show::line(&lang::doctor_lines(lang));
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
pub(super) async fn ask_models(loaded: &Loaded) -> Vec<(String, Result<(), String>)> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let Ok(models) = model::config::build_all(&loaded.config.models, &clock, &loaded.dir) else { return Vec::new() };
    let request = ModelRequest {
        system: "Answer with one word.".to_owned(),
        messages: vec![Message::user("ping")],
        tools: Vec::new(),
        max_tokens: Some(16),
    };
    let request = &request;
    let tools = &loaded.config.tools;
    // What only hears and speaks cannot be asked in words.
    let talks = models.into_iter().filter(|(name, _)| !tools.is_for_sound(name) || loaded.config.names_model(name));
    let asked = talks.map(|(name, model)| async move {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of every part of docs/troubleshooting.md are those that doctor says.
    #[test]
    fn the_troubleshooting_pages_quote_the_lines_as_they_are() {
        let pages = [
            (Lang::En, include_str!("../../docs/troubleshooting.md")),
            (Lang::Zh, include_str!("../../docs/zh/troubleshooting.md")),
        ];
        let (telegram, ada, bob, friends) = ("telegram:main", "Ada (99)", "Bob (42)", "Friends (-1001234567890)");
        for (lang, page) in pages {
            let token = lang::doctor_telegram_token(lang);
            let conflict = lang::doctor_telegram_conflict(lang);
            let taken_by = lang::doctor_port_taken_by(lang, "python3", 4711);
            let install = lang::doctor_skill_install(lang, "`brew install poppler`");
            let missing = lang::skill_needs_program(lang, "pdftotext");
            let unset = lang::skill_needs_variable(lang, "NOTES_KEY");
            let no_fields = lang::skill_no_front_matter(lang);
            let hint = lang::door_privacy_hint(lang);
            let readable = lang::doctor_readable(lang, "…");
            let cut = |en, zh| if lang == Lang::En { en } else { zh };
            let lines = [
                (lang::door_pairing(lang, ada, telegram), ""),
                (lang::door_sender_not_allowed(lang, "webhook:bridge", "Bob (u2)"), ""),
                (lang::door_turned_away(lang, 3, 2), ""),
                (lang::door_blocked(lang, telegram, bob), ""),
                (lang::door_direct_disabled(lang, telegram, bob), ""),
                (lang::door_group_not_allowed(lang, telegram, friends, ada), ""),
                (lang::door_sender_not_allowed_in_group(lang, telegram, bob, friends), ""),
                (
                    lang::door_not_addressed_kept(lang, telegram, friends),
                    cut("(kept as context).", "（已作为上下文保留）。"),
                ),
                (lang::door_privacy(lang, telegram, hint), ""),
                (lang::door_privacy_line(lang), ""),
                (lang::door_since_opened(lang, "…"), ""),
                (lang::doctor_channel_down(lang, telegram, token), cut("the token.", "这个令牌。")),
                (lang::doctor_channel_restarts(lang, telegram, conflict), cut("elsewhere.", "收取消息。")),
                (lang::doctor_exec_off(lang), ""),
                (lang::doctor_unknown_tools(lang, 2, "send_email", "…"), cut("(send_email).", "（send_email）。")),
                (lang::doctor_pseudo_calls(lang, 4, "…"), cut("making it: 4.", "：4 轮。")),
                (lang::turn_pseudo_call(lang), ""),
                (lang::door_model(lang), ""),
                (lang::doctor_model_silent(lang, "main", "…"), "`main` "),
                (lang::doctor_failed_order(lang, 1, "…"), cut("hours: 1.", "：1 次。")),
                (lang::doctor_order_repaired(lang, 2, "…"), cut("history: 2.", "：2 次。")),
                (lang::doctor_workspace(lang, "/srv/bot/workspace", readable), cut(" skills in ", "技能文件夹 ")),
                (lang::doctor_workspace_closed(lang, "/srv/bot/workspace", "Permission denied (os error 13)"), "13)"),
                (lang::doctor_skill_off(lang, "invoices", format!("{missing}{install}")), ""),
                (lang::doctor_skill_off(lang, "notes", unset), ""),
                (lang::doctor_skill_broken(lang, "old", no_fields, "…"), cut(" description ", "description 字段")),
                (lang::doctor_open_to_others(lang, "/srv/bot/.env", "0644", "600"), ""),
                (lang::doctor_open_to_others(lang, "/srv/bot/data", "0755", "700"), ""),
                (lang::doctor_port_taken(lang, "127.0.0.1:3002", taken_by), cut("4711)", "4711）")),
                (lang::doctor_dead_letters(lang, 1, "…", "…"), cut("newest:", "原因：")),
                (lang::doctor_running(lang, "http://127.0.0.1:3002/"), ""),
                (lang::door_hosts(lang), ""),
            ];
            for (line, cut) in lines {
                // The page may leave out what comes after this word.
                let end = line.find(cut).filter(|_| !cut.is_empty()).map_or(line.len(), |at| at + cut.len());
                assert!(page.contains(&line[..end]), "{lang:?}: the page does not say {:?}", &line[..end]);
            }
        }
    }
}
