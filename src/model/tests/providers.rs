//! Known providers' streams, whole answers and refusals, played by the mock in the shapes of `shapes.rs`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    shapes::{Meaning, PROVIDERS, REFUSALS, USAGE, called, said, whole},
    *,
};
use crate::model::quirks::Quirks;

/// The field in which a provider sends reasoning; nothing where these shapes have none.
fn reasoning_field(provider: &str) -> Option<&'static str> {
    match provider {
        "dashscope" | "deepseek" | "moonshot" => Some("reasoning_content"),
        "openrouter" => Some("reasoning"),
        _ => None,
    }
}

fn like(provider: &str) -> String {
    format!("quirks = {{ like = {provider:?} }}")
}

#[tokio::test]
async fn every_provider_s_stream_and_whole_answer_is_read() {
    let arguments = r#"{"path":"笔记.txt"}"#;
    for provider in PROVIDERS {
        for size in [7, 100_000] {
            let pieces = |text: String| {
                Act::Pieces(text.as_bytes().chunks(size).map(|bytes| Piece::Bytes(bytes.to_vec())).collect())
            };
            let arguments_split = r#"{"path":"n.txt"}"#;
            let server =
                mock(vec![pieces(called(provider, "read", arguments_split)), pieces(said(provider, "你好 there"))])
                    .await;
            let model = server.model(Arc::new(Hurried::default()), &like(provider));
            let response = ask(&model).await.expect(provider);
            assert_eq!(shape(&response), ("", vec![("read", arguments_split)], Finish::Stop), "{provider}");
            let (input, output, cached) = USAGE;
            let cached = if provider == "ollama" { 0 } else { cached };
            assert_eq!(response.usage, Usage { input, output, cached, ..Usage::default() }, "{provider}");
            let reasoning = reasoning_field(provider).map(|field| json!({ field: "let me see" }));
            assert_eq!(response.opaque, reasoning, "{provider}");
            assert!(response.request_id.is_some(), "{provider}");
            let response = ask(&model).await.expect(provider);
            assert_eq!(shape(&response), ("你好 there", vec![], Finish::Stop), "{provider}");
            assert_eq!(server.count(), 2, "{provider}");
        }
        let call = json!({ "id": "x", "type": "function", "function": { "name": "read", "arguments": arguments } });
        let message = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
        for finish in ["tool_calls", "stop"] {
            let server = mock(vec![Act::Answer(200, &[], whole(provider, &message, finish))]).await;
            let model = server
                .model(Arc::new(Hurried::default()), &format!("quirks = {{ like = {provider:?}, stream = false }}"));
            let response = ask(&model).await.expect(provider);
            assert_eq!(shape(&response), ("", vec![("read", arguments)], Finish::Stop), "{provider}");
            let body: Value = serde_json::from_str(&server.body(0)).expect("JSON");
            let thinking = if provider == "dashscope" { json!(false) } else { Value::Null };
            assert_eq!((&body["enable_thinking"], &body["stream"]), (&thinking, &Value::Null), "{provider}");
        }
    }
}

#[tokio::test]
async fn every_refusal_is_told_as_what_it_is_with_the_id_for_support() {
    for refusal in REFUSALS {
        let id: &'static [(&str, &str)] = match refusal.id_header {
            Some("x-request-id") => &[("x-request-id", "req-7")],
            Some("x-ds-trace-id") => &[("x-ds-trace-id", "req-7")],
            Some("msh-request-id") => &[("msh-request-id", "req-7")],
            Some(_) => &[("x-siliconcloud-trace-id", "req-7")],
            None => &[],
        };
        let server = mock(vec![Act::Answer(refusal.status, id, refusal.body.to_owned())]).await;
        let row = PROVIDERS.contains(&refusal.provider);
        let more = if row { like(refusal.provider) } else { String::new() };
        let model = server.model(Arc::new(Hurried::default()), &more);
        let error = ask(&model).await.expect_err(refusal.body);
        let cause = error.cause().unwrap_or_else(|| panic!("{error:?}: {}", refusal.body));
        let (line, detail) = (cause.line(Lang::En), cause.detail(Lang::Zh));
        let fits = match refusal.meaning {
            Meaning::TooLong => matches!(error, ModelError::TooLong(_)),
            Meaning::Refused => matches!(error, ModelError::Refused(_)),
            Meaning::Money => line == lang::model_money(Lang::En) && matches!(error, ModelError::Fatal(_)),
            Meaning::Key => line == lang::model_key(Lang::En, "main", 401) && matches!(error, ModelError::Fatal(_)),
            Meaning::Denied => {
                line == lang::model_denied(Lang::En, "main", 403) && matches!(error, ModelError::Fatal(_))
            }
            Meaning::Missing if refusal.provider == "ollama" => line == lang::model_not_pulled(Lang::En, "test-1"),
            Meaning::Missing => {
                line == lang::model_missing(Lang::En, "main", refusal.status) && matches!(error, ModelError::Fatal(_))
            }
            Meaning::Busy => line == lang::model_rate(Lang::En) && matches!(error, ModelError::Retry(_)),
            Meaning::Ill | Meaning::Wrong => line == lang::model_status(Lang::En, refusal.status),
        };
        assert!(fits, "{:?}: {error:?}: {}", refusal.meaning, refusal.body);
        let again = matches!(refusal.meaning, Meaning::Busy | Meaning::Ill);
        assert_eq!(server.count(), if again { 4 } else { 1 }, "{}", refusal.body);
        if refusal.id_header.is_some() || refusal.body.contains("req-7") {
            assert!(detail.contains("req-7") && !line.contains("req-7"), "{detail}");
        }
        assert!(!detail.contains("****") && detail.chars().count() <= 500, "{detail}");
    }
}

#[tokio::test]
async fn reasoning_goes_back_as_each_provider_wants_it() {
    let mut request = conversation();
    // The second exchange was another model's: no reasoning of its own.
    request.messages.extend([
        Message::Assistant {
            text: String::new(),
            calls: vec![ToolCall { id: "call_9".into(), name: "ls".into(), arguments: "{}".into() }],
            opaque: None,
        },
        Message::Tool { call_id: "call_9".into(), name: "ls".into(), text: "x".into() },
    ]);
    let absent = Value::Null;
    for (provider, first, foreign) in [
        ("dashscope", absent.clone(), absent.clone()),
        ("deepseek", json!("hm"), json!("")),
        ("moonshot", json!("hm"), json!(" ")),
        ("openrouter", json!("hm"), absent.clone()),
        ("ollama", absent.clone(), absent.clone()),
    ] {
        let server = mock(vec![good("ok")]).await;
        let model = server.model(Arc::new(Hurried::default()), &like(provider));
        model.complete(&request, &(), &CancellationToken::new()).await.expect("an answer");
        let body: Value = serde_json::from_str(&server.body(0)).expect("JSON");
        let messages = body["messages"].as_array().expect("messages");
        assert_eq!(messages[2]["reasoning_content"], first, "{provider}");
        assert_eq!(messages[7]["reasoning_content"], foreign, "{provider}");
        assert_eq!(messages[5]["reasoning_content"], absent, "{provider}: not beside a plain answer");
        assert_eq!(body["enable_thinking"], absent, "{provider}: a stream may think");
    }
    let server = mock(vec![Act::Answer(200, &[], whole("dashscope", &json!({"content": "ok"}), "stop"))]).await;
    let more = "quirks = { like = \"dashscope\", stream = false, extra = { enable_thinking = true } }";
    ask(&server.model(Arc::new(Hurried::default()), more)).await.expect("an answer");
    assert_eq!(server.body(0).matches("enable_thinking").count(), 1, "{}", server.body(0));
    assert!(server.body(0).contains("\"enable_thinking\":true"));
}

#[tokio::test]
async fn an_error_inside_openrouter_s_stream_is_an_error_and_what_was_said_is_kept_as_cut() {
    let error = json!({
        "id": "gen-9", "error": { "code": 502, "message": "Provider disconnected unexpectedly" },
        "choices": [{ "index": 0, "delta": { "content": "" }, "finish_reason": "error" }],
    });
    let error = format!(": OPENROUTER PROCESSING\n\ndata: {error}\n\n");
    let (result, server, _) = outcome(vec![stream(&error), good("the second time")]).await;
    assert_eq!((result.expect("an answer").text.as_str(), server.count()), ("the second time", 2));
    let (result, ..) = outcome(vec![stream(&error)]).await;
    let result = result.expect_err("always");
    assert!(matches!(&result, ModelError::Retry(_)) && result.to_string().contains("gen-9"), "{result}");
    let (result, server, _) = outcome(vec![stream(&(say("half an") + &error))]).await;
    assert_eq!((shape(&result.expect("what came")), server.count()), (("half an", vec![], Finish::Cut), 1));
    let filter = r#"data: {"error":{"code":"data_inspection_failed","message":"<400> InternalError.Algo.DataInspectionFailed: Output data may contain inappropriate content."},"request_id":"r"}"#;
    let (result, ..) = outcome(vec![stream(&format!("{}{filter}\n\n", say("half an")))]).await;
    assert_eq!(shape(&result.expect("what came")), ("half an", vec![], Finish::Filtered));
}

#[tokio::test]
async fn bad_input_64_odd_ends_are_no_ends_and_missing_ones_no_cuts() {
    // Some relays write "null" where others write null: the answer goes on.
    let early = say("one ").replace("\"delta\"", "\"finish_reason\":\"null\",\"delta\"");
    let (result, ..) = outcome(vec![stream(&(early.clone() + &say("two")))]).await;
    assert_eq!(shape(&result.expect("what came")), ("one two", vec![], Finish::Cut));
    let (result, ..) = outcome(vec![stream(&(early + &say("two") + &end("stop")))]).await;
    assert_eq!(shape(&result.expect("an answer")), ("one two", vec![], Finish::Stop));
    // Calls are announced and do not come.
    let (result, ..) = outcome(vec![stream(&(say("I will") + &end("tool_calls")))]).await;
    assert_eq!(shape(&result.expect("an answer")), ("I will", vec![], Finish::Stop));
    let (result, ..) = outcome(vec![stream(&(say("x") + &end("model_context_window_exceeded")))]).await;
    assert_eq!(result.expect("an answer").finish, Finish::Length);
    let (result, ..) = outcome(vec![stream(&(say("so ") + &end("sensitive")))]).await;
    assert_eq!(result.expect("an answer").finish, Finish::Filtered);
}

#[tokio::test]
async fn a_server_that_does_not_run_is_named_with_what_starts_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let asked = async |more: &str| {
        let config = toml::from_str(&format!("model = \"m\"\nbase_url = \"http://{at}/v1\"\n{more}")).expect("good");
        let model = build("main", &config, Arc::new(Hurried::default()), Path::new(".")).expect("good");
        let error = ask(&model).await.expect_err("nobody is there");
        assert!(matches!(error, ModelError::Retry(_)), "{error:?}");
        error.cause().expect("a cause").line(Lang::En)
    };
    assert_eq!(asked("").await, lang::model_not_running(Lang::En, &at));
    assert_eq!(asked(&like("ollama")).await, lang::model_ollama_not_running(Lang::En, &at));
    assert!(Quirks::of_server("localhost", 11434).ollama);
}

/// A proxy that speaks SOCKS5 and goes to `target` whatever it is asked for, or refuses CONNECT; it writes down where it was
/// asked to go.
async fn proxy(target: String) -> (std::net::SocketAddr, Arc<Mutex<Vec<String>>>, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("bound");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut tasks = JoinSet::new();
    let notes = Arc::clone(&seen);
    tasks.spawn(async move {
        let mut talks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            talks.spawn(relay(stream, target.clone(), Arc::clone(&notes)));
        }
    });
    (addr, seen, tasks)
}

async fn relay(mut stream: tokio::net::TcpStream, target: String, seen: Arc<Mutex<Vec<String>>>) {
    let first = stream.read_u8().await.expect("a byte");
    if first != 5 {
        let mut head = vec![first];
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        let head = String::from_utf8_lossy(&head);
        seen.lock().expect("not poisoned").push(head.lines().next().unwrap_or_default().to_owned());
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.expect("written");
        return;
    }
    let methods = stream.read_u8().await.expect("a count");
    stream.read_exact(&mut vec![0; usize::from(methods)]).await.expect("the methods");
    stream.write_all(&[5, 0]).await.expect("written");
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.expect("a request");
    assert_eq!(head[3], 3, "socks5h leaves the name to the proxy");
    let mut name = vec![0; usize::from(stream.read_u8().await.expect("a length"))];
    stream.read_exact(&mut name).await.expect("a name");
    let port = stream.read_u16().await.expect("a port");
    seen.lock().expect("not poisoned").push(format!("socks {}:{port}", String::from_utf8_lossy(&name)));
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("written");
    let mut there = tokio::net::TcpStream::connect(&target).await.expect("the target");
    // Ends when either side does.
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
}

#[tokio::test]
async fn socks_and_connect_proxies_are_used_as_written() {
    let server = mock(vec![good("by socks")]).await;
    let target = server.base_url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let (addr, seen, _tasks) = proxy(target).await;
    let through = |scheme: &str, base_url: &str| {
        let section = format!("model = \"m\"\nbase_url = \"{base_url}\"\nproxy = \"{scheme}://{addr}\"");
        let config = toml::from_str(&section).expect("a good section");
        build("main", &config, Arc::new(Hurried::default()), Path::new(".")).expect("a good section")
    };
    let model = through("socks5h", "http://model.lan:8000/v1");
    assert_eq!(ask(&model).await.expect("an answer").text, "by socks");
    assert_eq!(*seen.lock().expect("not poisoned"), ["socks model.lan:8000"]);

    // https goes by CONNECT; this proxy refuses, and the person hears which host was not reached, not the proxy's page.
    let model = through("http", "https://api.example.invalid/v1");
    let error = ask(&model).await.expect_err("refused by the proxy");
    assert_eq!(
        error.cause().expect("a cause").line(Lang::En),
        lang::model_unreachable(Lang::En, "api.example.invalid")
    );
    assert_eq!(seen.lock().expect("not poisoned")[1], "CONNECT api.example.invalid:443 HTTP/1.1");
    let tries = seen.lock().expect("not poisoned").len();

    // This machine is reached directly, whatever is written.
    let direct = mock(vec![good("directly")]).await;
    for scheme in ["http", "socks5h"] {
        assert_eq!(ask(&through(scheme, &direct.base_url)).await.expect("an answer").text, "directly");
    }
    assert_eq!(seen.lock().expect("not poisoned").len(), tries);
}
