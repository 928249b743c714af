//! `crawfish init`: asks which model answers and where people write, writes a commented configuration, and looks whether
//! both work. Everything it asks can be said on the command line.

use std::{
    fmt::Write as _,
    io::{self, BufRead as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use channel_api::ChannelId;
use clap::Args;
use serde_json::Value;

use super::{config::model_problem, doctor, exit::Exit, probe, reach, show};
use crate::{
    channels,
    config::{self, Env, is_secret_name},
    intake::access::ChannelPolicy,
    lang::{self, Lang},
    model::{
        config::Provider,
        preset::{PRESETS, Preset},
    },
    os,
    terminal::{escape, shell_word},
};

/// How long a provider may take to list its models.
const LISTING: Duration = Duration::from_secs(15);
/// The most models shown of a list.
const SHOWN: usize = 30;
/// The longest list of models that is read, in bytes.
const LONGEST_LIST: usize = 4 << 20;

/// Asks what is needed and writes a configuration.
#[derive(Debug, Args)]
pub struct Init {
    /// Ask nothing: everything is said here or in the environment. 不提问，全部由参数或环境变量给出。
    #[arg(long)]
    non_interactive: bool,
    /// Who answers: qwen, deepseek, kimi, glm, doubao, siliconflow, openrouter, ollama, openai, anthropic, custom, demo.
    /// 使用哪家的模型。
    #[arg(long, value_name = "PROVIDER")]
    model: Option<String>,
    /// Its key; else the provider's usual variable is used, e.g. DASHSCOPE_API_KEY. 模型密钥；不写则用环境变量。
    #[arg(long, value_name = "KEY")]
    model_key: Option<String>,
    /// The model's name as the provider writes it. 模型名称，照服务商的写法。
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Where its API is, for `custom` or another region. 接口地址，用于 custom 或其他地域。
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Where people write: telegram, discord, onebot, feishu, qq, webhook, none. 第一个渠道。
    #[arg(long, value_name = "KIND")]
    channel: Option<String>,
    /// The account's name in the configuration. 账号在配置中的名字。
    #[arg(long, value_name = "NAME", default_value = "main")]
    account: String,
    /// A key of the channel, e.g. access_token=…; may be repeated. 渠道的配置项，可重复。
    #[arg(long, value_name = "KEY=VALUE")]
    channel_set: Vec<String>,
    /// A second listener with the channels alone, e.g. 0.0.0.0:3003. 只提供渠道的第二个监听地址。
    #[arg(long, value_name = "ADDR")]
    channels_listen: Option<String>,
    /// Whose bot it is, e.g. onebot:12345; may be repeated. 主人，可重复。
    #[arg(long, value_name = "KIND:ID")]
    owner: Vec<String>,
    /// A group in which it answers whoever mentions it, by its id, or "*" for every group; may be repeated.
    /// 参与的群（群号，或 "*"），可重复。
    #[arg(long, value_name = "ID")]
    group: Vec<String>,
    /// Write secrets into the configuration instead of `.env`. 密钥直接写进配置文件，而不是 .env。
    #[arg(long)]
    inline_secrets: bool,
    /// Ask neither the model nor the platform. 不检查模型和平台。
    #[arg(long)]
    no_probe: bool,
    /// Replace what is there; the old files are kept as `.bak`. 覆盖已有文件，旧文件另存为 .bak。
    #[arg(long)]
    force: bool,
}

/// The usual variable of a key at a provider that is no preset.
const CUSTOM_KEY: &str = "MODEL_API_KEY";

/// The channels offered: what each needs, and which of it is made up here when it is left out.
const CHANNELS: [(&str, &[&str], Option<&str>); 7] = [
    ("telegram", &["token"], None),
    ("discord", &["token"], None),
    ("onebot", &[], Some("access_token")),
    ("feishu", &["app_id", "app_secret"], None),
    ("qq", &["app_id", "app_secret"], None),
    ("webhook", &[], Some("token")),
    ("none", &[], None),
];

/// Why nothing was written.
struct Failed(Exit, String);

impl Failed {
    fn usage(text: String) -> Self {
        Self(Exit::Usage, text)
    }
}

/// A secret that goes into `.env`.
struct Kept {
    name: String,
    value: String,
}

/// Where the secrets come from.
#[derive(Default)]
struct Secrets {
    /// Those that go into `.env`.
    kept: Vec<Kept>,
    /// The variables of the environment that the configuration refers to.
    in_env: Vec<String>,
}

impl Init {
    /// Runs it: 0 when the configuration was written and what was asked answers, 69 when it was written and something does
    /// not answer yet, 64 when something is missing, 74
    /// when the files cannot be written or are there already, 78 when what was said makes no configuration.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let lang = env.lang.unwrap_or_else(|| Lang::of_locale(|name| env.get(name).map(Into::into)));
        lang.set_current();
        reach::block_on(async {
            match self.write(config, env, lang).await {
                Ok(exit) => exit,
                Err(Failed(exit, text)) => {
                    eprintln!("{}", escape(&text));
                    exit
                }
            }
        })
    }

    async fn write(&self, config: Option<&Path>, env: &Env, lang: Lang) -> Result<Exit, Failed> {
        let file = config.unwrap_or(Path::new(config::FILE)).to_owned();
        if file.exists() && !self.force {
            return Err(Failed(Exit::Io, lang::init_exists(lang, file.display())));
        }
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
        let mut secrets = Secrets::default();
        let mut text = head(&self.server(), &self.owners()?, env.lang);
        text.push_str(&self.model(env, lang, &mut secrets).await?);
        let (id, section) = self.channel(env, lang, &mut secrets)?;
        text.push_str(&section);

        let dotenv = dir.join(".env");
        let Secrets { mut kept, in_env } = secrets;
        let old = Env::of_dotenv(&dotenv);
        let mut notes = Vec::new();
        // A gateway that is started elsewhere, as a service, has the file's value and not that of this environment.
        for name in in_env {
            let (Some(value), Some(old)) = (env.get(&name), old.get(&name)) else { continue };
            if value == old {
                continue;
            }
            if self.force {
                notes.push(lang::init_env_replaced(lang, dotenv.display(), &name));
                kept.push(Kept { value: value.to_owned(), name });
            } else {
                notes.push(lang::init_env_differs(lang, dotenv.display(), &name));
            }
        }
        let files = [(file.clone(), Some(text)), (dotenv.clone(), with_kept(&dotenv, &kept, self.force, lang)?)];
        let mut undo = Vec::new();
        for (path, content) in files {
            let Some(content) = content else { continue };
            let io = |error: io::Error| Failed(Exit::Io, format!("{}: {error}", path.display()));
            let old = std::fs::read(&path).ok();
            if let Some(old) = &old {
                let mut backup = path.clone().into_os_string();
                backup.push(".bak");
                os::write_private(Path::new(&backup), old).map_err(io)?;
            }
            os::write_private(&path, content.as_bytes()).map_err(io)?;
            undo.push((path, old));
        }
        let loaded = config::load(Some(&file), env).map_err(|errors| {
            put_back(&undo);
            Failed(Exit::from(&errors), errors.render(lang))
        })?;
        if let Some(problem) = model_problem(&loaded) {
            put_back(&undo);
            return Err(Failed(Exit::Config, problem));
        }
        for (path, _) in &undo {
            show::line(&lang::init_written(lang, path.display()));
        }
        for (id, _) in loaded
            .config
            .channels
            .iter()
            .filter(|(id, section)| id.kind() == "webhook" && !section.settings.contains_key("callback_url"))
        {
            notes.push(lang::unheard(lang, id, "callback_url"));
        }
        notes.extend(loaded.warnings.iter().map(|warning| warning.render(lang)));
        for note in notes {
            show::line(&format!("! {note}"));
        }
        let answers = self.no_probe || self.probed(&loaded, lang).await;
        show::line("");
        let owned = id.as_ref().and_then(|id| self.owner.iter().find_map(|owner| owner.strip_prefix(id.kind())));
        let plain = |id: &&str| id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@".contains(c));
        let sender = owned.and_then(|owner| owner.strip_prefix(':')).filter(plain).unwrap_or("u-1");
        let address = probe::address(&loaded.config.server);
        show::line(&next_steps(&file, config.is_some(), (id.as_ref(), sender), &address, lang));
        Ok(if answers { Exit::Ok } else { Exit::Unavailable })
    }

    /// Whether the model and the platform answer; what they said is shown.
    async fn probed(&self, loaded: &config::Loaded, lang: Lang) -> bool {
        let mut fine = true;
        for (name, answer) in doctor::ask_models(loaded).await {
            match answer {
                Ok(()) => show::line(&format!("✓ {}", lang::doctor_model_answers(lang, name))),
                Err(why) => {
                    fine = false;
                    show::line(&format!("✗ {}", lang::doctor_model_silent(lang, name, why)));
                }
            }
        }
        for (id, section) in &loaded.config.channels {
            let findings = probe::look(loaded, id, section).await;
            fine &= !probe::is_wrong(&findings);
            // That there is nobody to ask is no news.
            for finding in findings.iter().filter(|finding| !probe::is_nobody_to_ask(finding)) {
                show::line(&probe::lines(finding, lang));
            }
        }
        fine
    }

    fn server(&self) -> String {
        match &self.channels_listen {
            Some(addr) => format!("channels_listen = {}\n", quoted(addr)),
            None => "#channels_listen = \"0.0.0.0:3003\"\n".to_owned(),
        }
    }

    fn owners(&self) -> Result<Vec<String>, Failed> {
        for owner in &self.owner {
            if !owner.split_once(':').is_some_and(|(kind, id)| !kind.is_empty() && !id.is_empty()) {
                return Err(Failed::usage(lang::config_owner_form(Lang::current(), owner)));
            }
        }
        Ok(self.owner.clone())
    }

    async fn model(&self, env: &Env, lang: Lang, secrets: &mut Secrets) -> Result<String, Failed> {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).chain(["custom", "demo"]).collect();
        let chosen = self.answer(self.model.clone(), &lang::init_ask_model(lang, lang.listed(&names)), Some("demo"))?;
        if chosen == "demo" {
            return Ok(MODEL_DEMO.to_owned());
        }
        let preset = Preset::named(&chosen);
        if preset.is_none() && chosen != "custom" {
            return Err(Failed::usage(lang::init_unknown(lang, &chosen, lang.listed(&names))));
        }
        let usual = preset.map(|preset| preset.base_url);
        let keys = preset.map_or(&[CUSTOM_KEY][..], |preset| preset.keys);
        let base_url = match (&self.base_url, usual) {
            (Some(url), _) => url.clone(),
            (None, Some(url)) => url.to_owned(),
            (None, None) => self.answer(None, &lang::init_ask_base_url(lang), None)?,
        };
        let set = |name: &&&str| env.get(name).is_some_and(|key| !key.is_empty());
        let variable = keys.iter().find(set).or(keys.first()).copied().unwrap_or_default();
        let in_env = env.get(variable).filter(|key| !key.is_empty());
        let key = match (&self.model_key, in_env) {
            (Some(key), _) => Some(key.trim().to_owned()),
            (None, Some(_)) => None,
            (None, None) if variable.is_empty() => None,
            (None, None) if preset.is_none() => {
                Some(self.answer(None, &lang::init_ask_key(lang, variable), Some(""))?).filter(|key| !key.is_empty())
            }
            (None, None) => Some(self.answer(None, &lang::init_ask_key(lang, variable), None)?),
        };
        let shown_key = key.clone().or_else(|| in_env.map(str::to_owned));
        let name = match &self.model_name {
            Some(name) => name.clone(),
            None => {
                let listed = listed(preset, &base_url, shown_key.as_deref()).await;
                let listed: Vec<&str> = listed.iter().take(SHOWN).map(String::as_str).collect();
                let question = match listed.is_empty() {
                    true => lang::init_ask_name(lang),
                    false => format!("{}\n{}", lang::init_listed(lang, listed.join("  ")), lang::init_ask_name(lang)),
                };
                self.answer(None, &question, None)?
            }
        };
        let mut text = format!("{MODEL}[models.main]\n");
        match preset {
            Some(preset) => _ = writeln!(text, "preset = {}", quoted(preset.name)),
            None => text.push_str("provider = \"openai\"\n"),
        }
        if usual != Some(&*base_url) {
            let _ = writeln!(text, "base_url = {}", quoted(&base_url));
        }
        let _ = writeln!(text, "model = {}", quoted(&name));
        if let Some(key) = key {
            let _ = writeln!(text, "api_key = {}", self.secret(variable, &key, secrets));
        } else if in_env.is_some() {
            let _ = writeln!(text, "api_key = {}", quoted(&format!("${{{variable}}}")));
            secrets.in_env.push(variable.to_owned());
        }
        Ok(text)
    }

    fn channel(&self, env: &Env, lang: Lang, secrets: &mut Secrets) -> Result<(Option<ChannelId>, String), Failed> {
        let offered = CHANNELS.iter().filter(|(kind, ..)| *kind == "none" || channels::kind(kind).is_some());
        let names: Vec<&str> = offered.clone().map(|(kind, ..)| *kind).collect();
        let chosen =
            self.answer(self.channel.clone(), &lang::init_ask_channel(lang, lang.listed(&names)), Some("none"))?;
        let found = offered.clone().find(|(kind, ..)| *kind == chosen);
        let (kind, needed, made_up) =
            found.ok_or_else(|| Failed::usage(lang::init_unknown(lang, &chosen, lang.listed(&names))))?;
        if *kind == "none" {
            return Ok((None, CHANNEL_NONE.to_owned()));
        }
        let mut set: Vec<(String, String)> = Vec::new();
        for pair in &self.channel_set {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| Failed::usage(lang::init_key_value(lang, escape(pair))))?;
            set.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        let variable = |key: &str| format!("{kind}_{key}").to_ascii_uppercase();
        let mut from_env = Vec::new();
        for key in *needed {
            if set.iter().any(|(known, _)| known == key) {
                continue;
            }
            if env.get(&variable(key)).is_some_and(|value| !value.is_empty()) {
                from_env.push(*key);
            } else {
                let value = self.answer(None, &lang::init_ask_value(lang, key, lang::kind_title(lang, kind)), None)?;
                set.push(((*key).to_owned(), value));
            }
        }
        let has_secret = |set: &[(String, String)]| set.iter().any(|(key, _)| is_secret_name(key));
        if let Some(key) = made_up.filter(|_| !has_secret(&set)) {
            let mut random = [0_u8; 24];
            getrandom::fill(&mut random).map_err(|error| Failed(Exit::Os, error.to_string()))?;
            set.push((key.to_owned(), random.iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        let typed = typed(kind, &set, &from_env);
        let mut text = format!("{CHANNEL}[channels.{kind}.{}]\n", self.account);
        for (key, value) in &set {
            let value = match typed.get(key) {
                Some(value) if !is_secret_name(key) => value.to_string(),
                _ if is_secret_name(key) => self.secret(&variable(key), value, secrets),
                _ => quoted(value),
            };
            let _ = writeln!(text, "{key} = {value}");
        }
        for key in from_env {
            let _ = writeln!(text, "{key} = {}", quoted(&format!("${{{}}}", variable(key))));
            secrets.in_env.push(variable(key));
        }
        text.push_str(CHANNEL_HINTS);
        text.push_str(GROUP_HINTS);
        // Sections, as `doctor` writes them: the keys that its lines name can be added below.
        for group in &self.group {
            let _ = writeln!(text, "[channels.{kind}.{}.groups.{}]\n{GROUP}", self.account, quoted(group));
        }
        if self.group.is_empty() {
            let _ = writeln!(text, "#[channels.{kind}.{}.groups.\"*\"]\n#{GROUP}", self.account);
        }
        Ok((Some(ChannelId::new(kind, &self.account)), text))
    }

    /// A secret as it stands in the configuration.
    fn secret(&self, name: &str, value: &str, secrets: &mut Secrets) -> String {
        if self.inline_secrets {
            return quoted(value);
        }
        secrets.kept.push(Kept { name: name.to_owned(), value: value.to_owned() });
        quoted(&format!("${{{name}}}"))
    }

    /// What was said on the command line, else what the person in front of it answers.
    fn answer(&self, said: Option<String>, question: &str, usual: Option<&str>) -> Result<String, Failed> {
        if let Some(said) = said.filter(|said| !said.trim().is_empty()) {
            return Ok(said.trim().to_owned());
        }
        if self.non_interactive {
            let missing = || Failed::usage(lang::init_missing(Lang::current(), question));
            return usual.map(str::to_owned).ok_or_else(missing);
        }
        loop {
            let shown = usual.filter(|usual| !usual.is_empty()).map_or(String::new(), |usual| format!(" [{usual}]"));
            eprint!("{}{shown}: ", escape(question));
            let _ = io::stderr().flush();
            let mut line = String::new();
            let read = io::stdin().lock().read_line(&mut line).map_err(|error| Failed(Exit::Io, error.to_string()))?;
            let line = line.trim();
            match (line.is_empty(), usual) {
                (false, _) => return Ok(line.to_owned()),
                (true, Some(usual)) => return Ok(usual.to_owned()),
                (true, None) if read == 0 => {
                    return Err(Failed::usage(lang::init_missing(Lang::current(), question)));
                }
                (true, None) => {}
            }
        }
    }
}

/// The values as the adapter takes them: texts, unless it wants numbers, switches or lists.
fn typed(kind: &str, set: &[(String, String)], from_env: &[&str]) -> toml::Table {
    let policy = |key: &String| ChannelPolicy::KEYS.contains(&key.as_str());
    let texts = set.iter().map(|(key, value)| (key.clone(), toml::Value::String(value.clone())));
    let mut table: toml::Table = texts.collect();
    let fits = |table: &toml::Table| {
        let mut own: toml::Table =
            table.iter().filter(|(key, _)| !policy(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        own.extend(
            from_env.iter().map(|key| ((*key).to_owned(), toml::Value::String("from-the-environment".to_owned()))),
        );
        channels::kind(kind).is_some_and(|kind| (kind.check)(&own).is_ok())
    };
    let of_toml = |value: &str| {
        let read = toml::from_str::<toml::Table>(&format!("value = {value}")).ok()?.remove("value")?;
        (!read.is_str() && !read.is_datetime()).then_some(read)
    };
    for (key, value) in set.iter().filter(|(key, _)| !is_secret_name(key)) {
        let Some(read) = of_toml(value) else { continue };
        // Policy keys are the gateway's own: lists and switches. Of the others the adapter decides.
        if policy(key) || !fits(&table) {
            table.insert(key.clone(), read);
        }
    }
    table
}

/// The names of a provider's models, where it lists them.
async fn listed(preset: Option<&Preset>, base_url: &str, key: Option<&str>) -> Vec<String> {
    let client = match url::Url::parse(base_url) {
        Ok(url) if url.host_str().is_some_and(|host| host == "localhost" || host.starts_with("127.")) => {
            reqwest::Client::builder().no_proxy()
        }
        Ok(_) => reqwest::Client::builder(),
        Err(_) => return Vec::new(),
    };
    let Ok(client) = client.timeout(LISTING).redirect(reqwest::redirect::Policy::none()).build() else {
        return Vec::new();
    };
    let base_url = base_url.trim_end_matches('/');
    let request = match preset.map(|preset| preset.provider) {
        Some(Provider::Anthropic) => {
            let request = client.get(format!("{}/v1/models", base_url.trim_end_matches("/v1")));
            request.header("anthropic-version", "2023-06-01").header("x-api-key", key.unwrap_or_default())
        }
        _ => {
            let request = client.get(format!("{base_url}/models"));
            key.into_iter().fold(request, |request, key| request.bearer_auth(key))
        }
    };
    let read = async {
        let mut answer = request.send().await.ok()?.error_for_status().ok()?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.ok()? {
            body.extend_from_slice(&chunk);
            if body.len() > LONGEST_LIST {
                return None;
            }
        }
        let body: Value = serde_json::from_slice(&body).ok()?;
        let names = body["data"].as_array()?.iter().filter_map(|model| model["id"].as_str());
        Some(names.map(|name| escape(name).into_owned()).collect::<Vec<_>>())
    };
    let mut names = read.await.unwrap_or_default();
    names.sort_unstable();
    names
}

/// `.env` with these secrets; `None` when there are none.
fn with_kept(path: &Path, kept: &[Kept], force: bool, lang: Lang) -> Result<Option<String>, Failed> {
    if kept.is_empty() {
        return Ok(None);
    }
    let old = match std::fs::read_to_string(path) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failed(Exit::Io, format!("{}: {error}", path.display()))),
    };
    let names = |line: &str| {
        let line = line.trim().strip_prefix("export ").unwrap_or(line.trim());
        line.split_once('=').map(|(name, _)| name.trim().to_owned())
    };
    let mut text = String::new();
    for line in old.lines() {
        if let Some(again) = kept.iter().find(|kept| names(line).as_deref() == Some(kept.name.as_str())) {
            if !force {
                return Err(Failed(Exit::Io, lang::init_env_has(lang, path.display(), &again.name)));
            }
            continue;
        }
        text.push_str(line);
        text.push('\n');
    }
    for Kept { name, value } in kept {
        if value.chars().any(char::is_control) {
            return Err(Failed::usage(lang::init_bad_secret(lang, name)));
        }
        let value = match value.contains('\'') {
            false => format!("'{value}'"),
            true => format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
        };
        let _ = writeln!(text, "{name}={value}");
    }
    Ok(Some(text))
}

/// Leaves everything as it was.
fn put_back(files: &[(PathBuf, Option<Vec<u8>>)]) {
    for (path, old) in files {
        let _ = match old {
            Some(old) => os::write_private(path, old),
            None => std::fs::remove_file(path),
        };
    }
}

fn next_steps(file: &Path, named: bool, (id, sender): (Option<&ChannelId>, &str), address: &str, lang: Lang) -> String {
    let config = match named {
        true => format!(" --config {}", shell_word(&file.display().to_string())),
        false => String::new(),
    };
    let serve = lang::init_next_serve(lang, &config);
    let address = |id: &ChannelId| format!("{address}/channels/{}/{}", id.kind(), id.account());
    let then = match id {
        None => lang::init_next_chat(lang),
        Some(id) => match id.kind() {
            "onebot" => lang::init_next_onebot(lang, format!("ws://{}", address(id))),
            "webhook" => lang::init_next_webhook(lang, format!("http://{}", address(id)), sender),
            kind => lang::init_next_channel(lang, lang::kind_title(lang, kind), kind),
        },
    };
    format!("1. {serve}\n2. {then}")
}

/// A text in TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The beginning of the file.
fn head(server: &str, owners: &[String], lang: Option<Lang>) -> String {
    let mut text = format!("{HEAD}[server]\nlisten = \"127.0.0.1:3002\"\n{SERVER}{server}");
    text.push_str(OWNERS);
    if owners.is_empty() {
        text.push_str("#[access]\n#owners = [\"telegram:123456789\"]\n");
    } else {
        let owners: Vec<String> = owners.iter().map(|owner| quoted(owner)).collect();
        let _ = writeln!(text, "[access]\nowners = [{}]", owners.join(", "));
    }
    if let Some(lang) = lang {
        let lang = if lang == Lang::Zh { "zh" } else { "en" };
        let _ = write!(text, "\n# The language of the command line. 命令行的语言。\n[ui]\nlang = \"{lang}\"\n");
    }
    text
}

const HEAD: &str = "\
# Written by `crawfish init`. Every key: docs/configuration.md. Secrets stand in `.env` beside this file.
# 由 `crawfish init` 生成。全部配置项见 docs/zh/configuration.md。密钥写在旁边的 `.env` 里。

";
const SERVER: &str = "\
# A second listener, only for /channels/*: for platforms and bridges in containers or on other machines.
# 第二个监听地址，只提供 /channels/*：供容器或其他机器上的平台和桥接使用。
";
const OWNERS: &str = "
# Whose bot it is: an owner may do everything. `/whoami` in a chat shows a sender's id. Without one the first person whose
# pairing code is approved becomes the owner.
# 机器人的主人，可以做任何事。在聊天中发送 `/whoami` 可查看 ID。不写时，第一个通过配对的人成为主人。
";
const MODEL: &str = "
# Who answers: a known provider (preset), or any server that speaks OpenAI's or Anthropic's format. docs/models.md
# 使用的模型：已知的服务商（preset），或任何兼容 OpenAI、Anthropic 接口的服务。见 docs/zh/models.md
";
const MODEL_DEMO: &str = "
# Who answers: nothing is set, so the built-in demo does, without a key and without a network. docs/models.md
# 使用的模型：未设置，由内置演示模型回答，不需要密钥和网络。见 docs/zh/models.md
#[models.main]
#preset = \"qwen\"
#api_key = \"${DASHSCOPE_API_KEY}\"
#model = \"the name on the provider's page\"
";
const CHANNEL: &str = "
# Where people write. docs/channels/
# 大家在哪里说话。见 docs/zh/channels/
";
const CHANNEL_HINTS: &str = "\
# Who may write privately: pairing (strangers get a code that you approve), allowlist, open, disabled.
# 谁可以私聊：pairing（陌生人得到配对码，由你批准）、allowlist、open、disabled。
#dm_policy = \"pairing\"
# For all its connections, where the platform is not reachable directly. 无法直连平台时使用的代理。
#proxy = \"socks5h://127.0.0.1:1080\"
";
const GROUP_HINTS: &str = "
# In which groups it takes part: by id, or \"*\" for every group. It answers whoever mentions it, or all with
# `require_mention = false`.
# 参与哪些群：写群号，或用 \"*\" 表示所有群。被 @ 时回答；写 `require_mention = false` 则不用 @。
";
/// What stands in the section of a group; what else it may hold is at its default, so that no key is there twice when one
/// is added.
const GROUP: &str = "allow_from = [\"*\"]";
const CHANNEL_NONE: &str = "
# Where people write besides the web chat: docs/channels/README.md. `crawfish doctor` shows what is still closed.
# 除网页聊天外还可以接入的平台：见 docs/zh/channels/README.md。用 `crawfish doctor` 查看还有哪些未开启。
";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::intake::turned_away::{Place, Why};

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        init: Init,
    }

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn file(&self) -> PathBuf {
            self.0.path().join(config::FILE)
        }

        fn text(&self, name: &str) -> String {
            std::fs::read_to_string(self.0.path().join(name)).unwrap_or_default()
        }

        /// Asks nothing and nobody; the exit and what was said in the case of a failure.
        async fn init(&self, arguments: &[&str], env: &Env) -> (Exit, String) {
            let all = ["init", "--non-interactive", "--no-probe"].iter().chain(arguments);
            let only = Only::try_parse_from(all).expect("a command line");
            match only.init.write(Some(&self.file()), env, Lang::En).await {
                Ok(exit) => (exit, String::new()),
                Err(Failed(exit, text)) => (exit, text),
            }
        }

        fn loaded(&self, env: &Env) -> config::Loaded {
            config::load(Some(&self.file()), env).expect("what was written is a configuration")
        }
    }

    #[tokio::test]
    async fn without_any_answer_the_demo_is_set_up_and_what_is_there_is_never_overwritten() {
        let (folder, env) = (Folder::new(), Env::default());
        assert_eq!(folder.init(&[], &env).await, (Exit::Ok, String::new()));
        assert!(folder.loaded(&env).config.models.is_empty());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(folder.file()).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let before = folder.text(config::FILE);
        let (exit, said) = folder.init(&["--channel", "webhook"], &env).await;
        assert!(exit == Exit::Io && said.contains("--force"), "{said}");
        assert_eq!(folder.text(config::FILE), before);
        let (exit, said) = folder.init(&["--channel", "webhook", "--force"], &env).await;
        assert_eq!((exit, said.as_str()), (Exit::Ok, ""));
        assert_eq!(folder.text("config.toml.bak"), before);
    }

    #[tokio::test]
    async fn a_model_and_a_channel_are_written_with_their_secrets_beside() {
        let (folder, mut env) = (Folder::new(), Env::default());
        env.lang = Some(Lang::Zh);
        std::fs::write(folder.0.path().join(".env"), "OTHER=1\n").expect("written");
        let token = format!("token={TOKEN}");
        let arguments = [
            "--model",
            "qwen",
            "--model-key",
            "sk-it's-a-key",
            "--model-name",
            "some \"model\"",
            "--channel",
            "webhook",
            "--channel-set",
            &token,
            "--channel-set",
            "allow_private_callback=true",
            "--channel-set",
            "callback_url=https://bridge.example.org/cb",
            "--channel-set",
            "trusted=[\"u1\"]",
            "--channels-listen",
            "127.0.0.1:3003",
            "--owner",
            "webhook:u1",
            "--group",
            "room 1",
        ];
        assert_eq!(folder.init(&arguments, &env).await, (Exit::Ok, String::new()));
        let written = folder.text(config::FILE);
        assert!(!written.contains(TOKEN) && !written.contains("sk-it"), "{written}");
        assert!(folder.text(".env").starts_with("OTHER=1\n") && folder.text(".env").contains(TOKEN));
        let loaded = folder.loaded(&Env::default());
        assert_eq!(loaded.lang, Lang::Zh);
        let main = &loaded.config.models["main"];
        assert_eq!(main.api_key.as_ref().map(crate::secrets::Secret::expose), Some("sk-it's-a-key"));
        assert_eq!(main.model.as_deref(), Some("some \"model\""));
        assert_eq!(loaded.config.server.channels_listen, "127.0.0.1:3003");
        assert_eq!(loaded.config.access.owners, ["webhook:u1"]);
        let section = &loaded.config.channels[&ChannelId::new("webhook", "main")];
        assert_eq!(section.settings["token"].as_str(), Some(TOKEN));
        assert_eq!(section.policy.trusted, ["u1"]);
        assert_eq!(section.policy.groups.keys().collect::<Vec<_>>(), ["room 1"]);
        // A key in the environment is referred to and copied nowhere.
        let other = Folder::new();
        let env = Env::of([("DEEPSEEK_API_KEY", "sk-env")]);
        let exit = other.init(&["--model", "deepseek", "--model-name", "m"], &env).await;
        assert_eq!(exit, (Exit::Ok, String::new()));
        assert!(
            other.text(config::FILE).contains("api_key = \"${DEEPSEEK_API_KEY}\"") && other.text(".env").is_empty()
        );
    }

    #[tokio::test]
    async fn what_is_missing_or_wrong_is_said_and_leaves_nothing_behind() {
        let env = Env::default();
        let table: [(&[&str], Exit, &str); 8] = [
            (&["--model", "gpt"], Exit::Usage, "qwen, deepseek"),
            (&["--model", "qwen", "--model-name", "m"], Exit::Usage, "--model-key"),
            (&["--model", "custom", "--model-name", "m"], Exit::Usage, "--base-url"),
            (&["--model", "custom", "--base-url", "http://127.0.0.1:1/v1"], Exit::Usage, "--model-name"),
            (&["--channel", "icq"], Exit::Usage, "telegram"),
            (&["--channel", "telegram"], Exit::Usage, "--channel-set token="),
            (&["--channel", "webhook", "--channel-set", "colour=red"], Exit::Config, "colour"),
            (&["--owner", "somebody"], Exit::Usage, "somebody"),
        ];
        for (arguments, wanted, says) in table {
            let folder = Folder::new();
            let (exit, said) = folder.init(arguments, &env).await;
            assert!(exit == wanted && said.contains(says), "{arguments:?}: {exit:?} {said}");
            let left: Vec<_> = std::fs::read_dir(folder.0.path()).expect("read").flatten().collect();
            assert!(left.is_empty(), "{arguments:?}: {left:?}");
        }
    }

    #[tokio::test]
    async fn the_models_of_a_server_are_listed_where_none_is_named() {
        let app = axum::Router::new().route(
            "/v1/models",
            axum::routing::get(|| async {
                axum::Json(serde_json::json!({ "data": [{ "id": "b" }, { "id": "a\u{1b}" }, {}] }))
            }),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("it listens"));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await });
        assert_eq!(listed(None, &url, None).await, ["a\\x1b", "b"]);
        let (exit, said) = Folder::new().init(&["--model", "ollama", "--base-url", &url], &Env::default()).await;
        assert!(exit == Exit::Usage && said.contains("a\\x1b  b"), "{said}");
        assert!(listed(None, "http://127.0.0.1:1/v1", None).await.is_empty());
    }

    #[test]
    fn the_next_steps_name_the_address_that_the_other_side_takes() {
        let id = ChannelId::new("onebot", "main");
        let text = next_steps(Path::new("config.toml"), false, (Some(&id), "u-1"), "HOST:3003", Lang::En);
        assert!(text.contains("`crawfish serve`") && text.contains("ws://HOST:3003/channels/onebot/main"), "{text}");
        let text = next_steps(Path::new("my bot/c.toml"), true, (None, "u-1"), "127.0.0.1:3002", Lang::Zh);
        assert!(text.contains("crawfish --config 'my bot/c.toml' serve"), "{text}");
        let id = ChannelId::new("webhook", "main");
        let text = next_steps(Path::new("config.toml"), false, (Some(&id), "u1"), "127.0.0.1:3002", Lang::En);
        assert!(text.contains("\"sender\":{\"id\":\"u1\"}"), "{text}");
        let id = ChannelId::new("feishu", "main");
        let text = next_steps(Path::new("config.toml"), false, (Some(&id), "u-1"), "127.0.0.1:3002", Lang::Zh);
        assert!(text.contains("（飞书）") && text.contains("docs/zh/channels/feishu.md"), "{text}");
    }

    /// The configuration after somebody added a line of `doctor`: the key goes below its section, if that is there.
    fn added(text: &str, line: &str) -> String {
        let (header, key) = line.split_once("] ").map_or((line, ""), |(header, key)| (header, key));
        let header = format!("{}]", header.trim_end_matches(']'));
        match text.lines().any(|line| line == header) {
            true => text.replace(&format!("\n{header}\n"), &format!("\n{header}\n{key}\n")),
            false => format!("{text}\n{header}\n{key}\n"),
        }
    }

    #[tokio::test]
    async fn a_line_of_doctor_can_be_added_below_what_was_written() {
        let (folder, env) = (Folder::new(), Env::default());
        let arguments = ["--channel", "onebot", "--group", "700000001", "--group", "*"];
        assert_eq!(folder.init(&arguments, &env).await, (Exit::Ok, String::new()));
        let written = folder.text(config::FILE);
        let (loaded, id) = (folder.loaded(&env), ChannelId::new("onebot", "main"));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        for conversation in ["700000001", "700000002"] {
            let place = Place {
                channel: id.clone(),
                group: true,
                conversation: conversation.to_owned(),
                title: None,
                sender: "1".to_owned(),
                name: None,
                why: Why::NotAddressed,
                kept: true,
                scope: None,
                count: 1,
                last_at: 0,
            };
            let gate = |id: &ChannelId| config::doors::gate(&loaded.config, id);
            let door = config::doors::with_turned_away(&[], std::slice::from_ref(&place), gate, 0, Lang::En).remove(0);
            std::fs::write(folder.file(), added(&written, &door.line)).expect("written");
            assert!(config::doors::opens(&folder.loaded(&env).config, &place), "{}", door.line);
        }
        for door in config::doors::doors(&loaded.config, Lang::En).iter().filter(|door| door.line.starts_with("[")) {
            if door.name == "model" {
                // A whole section, with what a person has to fill in.
                continue;
            }
            std::fs::write(folder.file(), added(&written, &door.line)).expect("written");
            assert!(config::load(Some(&folder.file()), &env).is_ok(), "{}", door.line);
        }
    }

    #[tokio::test]
    async fn a_value_of_the_environment_that_differs_from_the_file_is_not_left_unsaid() {
        let env = Env::of([("FEISHU_APP_SECRET", "0123456789abcdef0123456789abcdef")]);
        let arguments = ["--channel", "feishu", "--channel-set", "app_id=cli_a1b2c3d4e5f6a7b8"];
        let folder = Folder::new();
        std::fs::write(folder.0.path().join(".env"), "FEISHU_APP_SECRET=old\nOTHER=1\n").expect("written");
        assert_eq!(folder.init(&arguments, &env).await.0, Exit::Ok);
        assert!(folder.text(".env").contains("FEISHU_APP_SECRET=old"), "kept without --force");
        let forced = ["--force"].iter().chain(&arguments).copied().collect::<Vec<_>>();
        assert_eq!(folder.init(&forced, &env).await, (Exit::Ok, String::new()));
        let written = folder.text(".env");
        assert!(written.contains("OTHER=1") && written.contains("FEISHU_APP_SECRET='0123"), "{written}");
        assert!(!written.contains("=old") && folder.text(".env.bak").contains("=old"), "{written}");
    }
}
