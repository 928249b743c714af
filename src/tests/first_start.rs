//! A folder with nothing in it: the gateway starts, says hello over the web chat's API, and stops when asked.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    gateway::{Gateway, client, sse_data},
    model_server::{ModelServer, text},
};

#[tokio::test]
async fn an_empty_folder_becomes_a_gateway_that_answers_and_stops_with_0() {
    let mut gateway = Gateway::folder("");
    // The best of three, for the machine may be busy with other things.
    let mut best = gateway.restart().await;
    for _ in 0..2 {
        assert_eq!(gateway.terminate().await.0, Some(0), "{}", gateway.log());
        best = best.min(gateway.restart().await);
    }
    assert!(best < Duration::from_secs(1), "ready after {best:?}");

    let task = gateway.chat(&json!({ "message": "你好" })).await;
    assert_eq!(task["success"], true);
    let id = task["taskId"].as_str().expect("a task's id");
    let events = gateway.events(id).await;
    let end = events.last().expect("an end");
    assert_eq!((&end["type"], &end["taskId"]), (&json!("task_complete"), &json!(id)));
    let result = end["result"].as_str().expect("a text");
    assert!(result.contains("你好"), "{result}");
    let streamed: String = events
        .iter()
        .filter(|event| event["type"] == "text_delta" && event["replace"] != true)
        .filter_map(|event| event["text"].as_str())
        .collect();
    assert!(result.contains(&streamed), "{streamed:?} is not of {result:?}");

    assert!(gateway.dir().join("workspace/AGENTS.md").is_file(), "the templates are written");
    let (code, time) = gateway.terminate().await;
    assert_eq!(code, Some(0), "{}", gateway.log());
    assert!(time < Duration::from_secs(7), "{time:?}");
    assert!(!gateway.dir().join("data/run.json").exists(), "nothing claims to run");
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}

#[tokio::test]
async fn whoever_has_no_token_gets_401_and_public_doors_are_open() {
    let gateway = Gateway::start("").await;
    let (client, url) = (client(), gateway.url());
    let body = json!({ "message": "hello" });
    let chat = || client.post(format!("{url}/api/chat")).json(&body);
    let sse = || client.get(format!("{url}/sse"));
    let wrong = "0".repeat(64);
    for (request, expected) in [
        (chat(), 401),
        (sse(), 401),
        (chat().bearer_auth(&wrong), 401),
        (chat().header("authorization", "Basic eDp5"), 401),
        (client.get(format!("{url}/healthz")), 200),
        (client.get(format!("{url}/readyz")), 200),
        (client.get(format!("{url}/channels/webhook/nobody")), 404),
        (client.post(format!("{url}/channels/webhook/nobody")).body("{}"), 404),
        (chat().bearer_auth(gateway.token()), 200),
    ] {
        let request = request.build().expect("a request");
        let shown = format!("{} {} {:?}", request.method(), request.url(), request.headers());
        let answer = client.execute(request).await.expect("it answers");
        assert_eq!(answer.status().as_u16(), expected, "{shown}");
    }
    // A page of another name that leads here.
    let rebound = chat().bearer_auth(gateway.token()).header("host", "evil.test").send().await.expect("it answers");
    assert!(matches!(rebound.status().as_u16(), 400..=499), "{}", rebound.status());
    let foreign = chat().bearer_auth(gateway.token()).header("origin", "http://evil.test").send().await;
    assert!(matches!(foreign.expect("it answers").status().as_u16(), 400..=499));
}

#[tokio::test]
async fn a_broken_event_stream_is_taken_up_where_it_ended() {
    let gateway = Gateway::start("").await;
    let task = gateway.chat(&json!({ "message": "one" })).await;
    let id = task["taskId"].as_str().expect("a task");
    gateway.events(id).await;
    let read = async |after: Option<&str>| {
        let mut request = client().get(format!("{}/sse?taskId={id}", gateway.url())).bearer_auth(gateway.token());
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let mut answer = request.send().await.expect("it answers");
        let mut text = String::new();
        while !text.contains("task_complete") {
            let chunk = answer.chunk().await.expect("it goes on").expect("it goes on");
            text.push_str(std::str::from_utf8(&chunk).expect("each event is whole"));
        }
        text
    };
    let whole = read(None).await;
    let ids: Vec<&str> = whole.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert!(ids.len() >= 2, "{whole}");
    assert!(ids.windows(2).all(|pair| pair[0].parse::<i64>().ok() < pair[1].parse::<i64>().ok()), "{ids:?}");
    let rest = read(Some(ids[0])).await;
    let resumed: Vec<&str> = rest.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(resumed, ids[1..], "what was missed, each once");
    assert_eq!(sse_data(&rest).last(), sse_data(&whole).last());
}

/// design.md §16. The path of the folder stands in it six times.
#[tokio::test]
async fn the_first_request_fits_into_twelve_kilobytes() {
    for lang in ["en", "zh"] {
        let model = ModelServer::start(|_| text("hello")).await;
        let config = format!("{}\n[agent]\nlang = \"{lang}\"", model.section());
        let gateway = Gateway::start(&config).await;
        assert_eq!(gateway.answer("hello", None).await, "hello");
        let asks = model.asks();
        let body = &asks[0].body;
        let tools = body["tools"].as_array().map_or(0, Vec::len);
        assert!(tools >= 16, "every tool that is there without a key: {body}");
        assert!(body.to_string().contains("study-notes"), "the shipped skills: {body}");
        assert!(body.to_string().len() <= 12 * 1024, "{lang}: {} bytes", body.to_string().len());
    }
}
