//! What the answers and refusals of providers look like on the wire: written by us after their documentation, used by the
//! journeys and by the tests of `src/model` alike. Performs no IO.
//!
//! Sources: help.aliyun.com model-studio ("Error codes", "Function Calling"); api-docs.deepseek.com ("Rate Limit", "Error
//! Codes", "Context Caching"); platform.kimi.ai ("Errors", "Tool Use"); openrouter.ai docs ("Streaming", "Errors and
//! Debugging"); docs.ollama.com ("OpenAI compatibility"); docs.z.ai ("Errors"); platform.minimax.io ("Error Codes");
//! docs.siliconflow.cn ("错误处理"); volcengine.com docs 82379/1299023 ("错误码"); deepset-ai/haystack#9581 (empty deltas).

use serde_json::{Value, json};

/// The providers whose streams are played, by their row in the table.
pub const PROVIDERS: [&str; 5] = ["dashscope", "deepseek", "moonshot", "openrouter", "ollama"];

/// The usage in these shapes: input, output, cached.
pub const USAGE: (u64, u64, u64) = (1000, 20, 640);

fn event(chunk: &Value) -> String {
    format!("data: {chunk}\n\n")
}

fn chunk(provider: &str, delta: &Value, finish: Option<&str>) -> Value {
    json!({
        "id": id(provider), "object": "chat.completion.chunk", "created": 1_796_000_000, "model": "their-model",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish, "logprobs": null }],
    })
}

fn id(provider: &str) -> String {
    match provider {
        "openrouter" => "gen-1796000000-abc".to_owned(),
        other => format!("chatcmpl-{other}"),
    }
}

fn usage(provider: &str) -> Value {
    let (input, output, cached) = USAGE;
    let mut usage = json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output });
    match provider {
        "dashscope" | "openrouter" => usage["prompt_tokens_details"] = json!({ "cached_tokens": cached }),
        "deepseek" => {
            usage["prompt_cache_hit_tokens"] = json!(cached);
            usage["prompt_cache_miss_tokens"] = json!(input - cached);
        }
        "moonshot" => usage["cached_tokens"] = json!(cached),
        _ => {}
    }
    usage
}

/// What comes before the first words: comments, blank lines, reasoning.
fn beginning(provider: &str) -> String {
    let think = |field: &str| {
        ["let me ", "see"]
            .map(|piece| event(&chunk(provider, &json!({ "content": null, field: piece }), None)))
            .concat()
    };
    match provider {
        "dashscope" => {
            event(&chunk(provider, &json!({ "role": "assistant", "content": "" }), None)) + &think("reasoning_content")
        }
        "deepseek" => format!("\n\n: keep-alive\n\n: keep-alive\n\n{}", think("reasoning_content")),
        "moonshot" => {
            event(&chunk(provider, &json!({ "role": "assistant", "content": "" }), None)) + &think("reasoning_content")
        }
        "openrouter" => format!(": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n{}", think("reasoning")),
        _ => String::new(),
    }
}

/// The end of a stream with this reason.
fn end(provider: &str, finish: &str) -> String {
    let mut last = chunk(provider, &json!({}), Some(finish));
    let alone =
        json!({ "id": id(provider), "object": "chat.completion.chunk", "choices": [], "usage": usage(provider) });
    match provider {
        // In the last chunk itself.
        "deepseek" => {
            last["usage"] = usage(provider);
            format!("{}data: [DONE]\n\n", event(&last))
        }
        // Inside the choice.
        "moonshot" => {
            last["choices"][0]["usage"] = usage(provider);
            format!("{}data: [DONE]\n\n", event(&last))
        }
        "openrouter" => {
            last["choices"][0]["native_finish_reason"] = json!("completed");
            format!("{}: OPENROUTER PROCESSING\n\n{}data: [DONE]\n\n", event(&last), event(&alone))
        }
        _ => format!("{}{}data: [DONE]\n\n", event(&last), event(&alone)),
    }
}

/// A stream that calls a tool.
pub fn called(provider: &str, name: &str, arguments: &str) -> String {
    let (first, second) = arguments.split_at(arguments.len() / 2);
    let piece = |call: Value| event(&chunk(provider, &json!({ "content": null, "tool_calls": [call] }), None));
    let begin = |arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "index": 0, "id": "call_0bdcc155", "type": "function", "function": function })
    };
    let calls = match provider {
        // Later pieces have an empty id and no name, and one of them has nothing at all.
        "dashscope" => {
            let more =
                |function: Value| piece(json!({ "index": 0, "id": "", "type": "function", "function": function }));
            piece(begin(""))
                + &more(json!({ "arguments": first }))
                + &more(json!({ "name": "", "arguments": second }))
                + &more(json!({ "name": null, "arguments": null }))
                + &more(json!({}))
        }
        "deepseek" | "moonshot" => {
            let more = |arguments: &str| piece(json!({ "index": 0, "function": { "arguments": arguments } }));
            piece(begin("")) + &more(first) + &more(second)
        }
        "openrouter" => {
            let more = json!({ "index": 0, "id": null, "type": "function", "function": { "name": null, "arguments": second } });
            piece(begin(first)) + ": OPENROUTER PROCESSING\n\n" + &piece(more)
        }
        // Whole, at once.
        _ => piece(begin(arguments)),
    };
    // Ollama's older versions end calls with `stop`.
    let finish = if provider == "ollama" { "stop" } else { "tool_calls" };
    beginning(provider) + &calls + &end(provider, finish)
}

/// A stream that says something.
pub fn said(provider: &str, text: &str) -> String {
    let at = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
    let (first, second) = text.split_at(at);
    let say = |text: &str| event(&chunk(provider, &json!({ "content": text }), None));
    beginning(provider) + &say(first) + &say(second) + &end(provider, "stop")
}

/// The same as a whole answer: `message` is the assistant's.
pub fn whole(provider: &str, message: &Value, finish: &str) -> String {
    json!({
        "id": id(provider), "object": "chat.completion", "created": 1_796_000_000, "model": "their-model",
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }], "usage": usage(provider),
    })
    .to_string()
}

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Shorten the request.
    TooLong,
    /// The content filter.
    Refused,
    /// The account is empty.
    Money,
    /// The key is wrong.
    Key,
    /// The account may not use this model.
    Denied,
    /// No such model.
    Missing,
    /// Ask again later.
    Busy,
    /// Ill: ask again later.
    Ill,
    /// The request is wrong otherwise.
    Wrong,
}

/// A refusal: provider, status, header with the request's id, body, meaning.
pub struct Refusal {
    /// The provider's row, or its name where it needs none.
    pub provider: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The header that holds the request's id (`req-7`), where there is one.
    pub id_header: Option<&'static str>,
    /// The body.
    pub body: &'static str,
    /// What it means.
    pub meaning: Meaning,
}

const fn refusal(
    provider: &'static str,
    status: u16,
    id_header: Option<&'static str>,
    body: &'static str,
    meaning: Meaning,
) -> Refusal {
    Refusal { provider, status, id_header, body, meaning }
}

const ALI: Option<&str> = Some("x-request-id");
const DEEP: Option<&str> = Some("x-ds-trace-id");
const KIMI: Option<&str> = Some("msh-request-id");

/// Refusals as providers write them.
pub const REFUSALS: &[Refusal] = &[
    refusal(
        "dashscope",
        400,
        None,
        r#"{"error":{"message":"Input data may contain inappropriate content. For details, see: https://help.aliyun.com/x","type":"data_inspection_failed","param":null,"code":"data_inspection_failed"},"id":"chatcmpl-x","request_id":"req-7"}"#,
        Meaning::Refused,
    ),
    refusal(
        "dashscope",
        400,
        ALI,
        r#"{"error":{"message":"<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate content.","code":"data_inspection_failed"}}"#,
        Meaning::Refused,
    ),
    refusal(
        "dashscope",
        400,
        None,
        r#"{"error":{"message":"Access denied, please make sure your account is in good standing.","type":"Arrearage","param":null,"code":"Arrearage"},"request_id":"req-7"}"#,
        Meaning::Money,
    ),
    refusal(
        "dashscope",
        403,
        ALI,
        r#"{"error":{"message":"The free tier of the model has been exhausted. If you wish to continue access the model on a paid basis, please disable the \"use free tier only\" mode.","type":"AllocationQuota.FreeTierOnly","code":"AllocationQuota.FreeTierOnly"}}"#,
        Meaning::Money,
    ),
    refusal(
        "dashscope",
        429,
        ALI,
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
        Meaning::Busy,
    ),
    refusal(
        "dashscope",
        429,
        ALI,
        r#"{"error":{"message":"You exceeded your current requests list.","type":"limit_requests","param":null,"code":"limit_requests"}}"#,
        Meaning::Busy,
    ),
    refusal(
        "dashscope",
        429,
        ALI,
        r#"{"code":"Throttling.RateQuota","message":"Requests rate limit exceeded, please try again later.","request_id":"req-7"}"#,
        Meaning::Busy,
    ),
    refusal(
        "dashscope",
        400,
        ALI,
        r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]","type":"invalid_request_error","code":"invalid_parameter_error"}}"#,
        Meaning::TooLong,
    ),
    refusal(
        "dashscope",
        401,
        ALI,
        r#"{"error":{"message":"Incorrect API key provided. ","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
        Meaning::Key,
    ),
    refusal(
        "dashscope",
        403,
        ALI,
        r#"{"error":{"message":"Access to model denied. Please make sure you are eligible for using the model.","code":"AccessDenied.Unpurchased"}}"#,
        Meaning::Denied,
    ),
    refusal(
        "dashscope",
        404,
        ALI,
        r#"{"error":{"message":"The model `qwen-nothing` does not exist or you do not have access to it.","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#,
        Meaning::Missing,
    ),
    refusal(
        "dashscope",
        400,
        ALI,
        r#"{"error":{"message":"parameter.enable_thinking must be set to false for non-streaming calls","code":"invalid_parameter_error"}}"#,
        Meaning::Wrong,
    ),
    refusal(
        "deepseek",
        400,
        DEEP,
        r#"{"error":{"message":"Content Exists Risk","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
        Meaning::Refused,
    ),
    refusal(
        "deepseek",
        402,
        DEEP,
        r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
        Meaning::Money,
    ),
    refusal(
        "deepseek",
        401,
        DEEP,
        r#"{"error":{"message":"Authentication Fails, Your api key: ****abcd is invalid","type":"authentication_error","param":null,"code":"invalid_request_error"}}"#,
        Meaning::Key,
    ),
    refusal(
        "deepseek",
        503,
        DEEP,
        r#"{"error":{"message":"Service is too busy. We advise users to temporarily switch to alternative LLM API service providers.","type":"service_unavailable_error"}}"#,
        Meaning::Ill,
    ),
    refusal(
        "deepseek",
        400,
        DEEP,
        r#"{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 140000 tokens.","type":"invalid_request_error"}}"#,
        Meaning::TooLong,
    ),
    refusal(
        "moonshot",
        400,
        KIMI,
        r#"{"error":{"type":"content_filter","message":"The request was rejected because it was considered high risk"}}"#,
        Meaning::Refused,
    ),
    refusal(
        "moonshot",
        429,
        KIMI,
        r#"{"error":{"message":"Your account org-1<ak-2> is suspended, please check your plan and billing details","type":"exceeded_current_quota_error"}}"#,
        Meaning::Money,
    ),
    refusal(
        "moonshot",
        429,
        KIMI,
        r#"{"error":{"message":"Your account org-1<ak-2> request reached organization max concurrency: 1, please try again after 1 seconds","type":"rate_limit_reached_error"}}"#,
        Meaning::Busy,
    ),
    refusal(
        "moonshot",
        429,
        KIMI,
        r#"{"error":{"message":"The engine is currently overloaded, please try again later","type":"engine_overloaded_error"}}"#,
        Meaning::Busy,
    ),
    refusal(
        "moonshot",
        400,
        KIMI,
        r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 131072","type":"invalid_request_error"}}"#,
        Meaning::TooLong,
    ),
    refusal(
        "moonshot",
        400,
        KIMI,
        r#"{"error":{"message":"Input token length too long","type":"invalid_request_error"}}"#,
        Meaning::TooLong,
    ),
    refusal(
        "moonshot",
        404,
        KIMI,
        r#"{"error":{"message":"Not found the model kimi-nothing or Permission denied","type":"resource_not_found_error"}}"#,
        Meaning::Missing,
    ),
    refusal(
        "openrouter",
        402,
        None,
        r#"{"error":{"message":"This request requires more credits, or fewer max_tokens.","code":402},"user_id":"user_x"}"#,
        Meaning::Money,
    ),
    refusal(
        "openrouter",
        403,
        None,
        r#"{"error":{"message":"Moderation failed","code":403,"metadata":{"reasons":["violence"],"flagged_input":"x","provider_name":"P","model_slug":"m"}}}"#,
        Meaning::Refused,
    ),
    refusal(
        "openrouter",
        400,
        None,
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"This endpoint's maximum context length is 32768 tokens\",\"type\":\"invalid_request_error\"}}","provider_name":"P"}}}"#,
        Meaning::TooLong,
    ),
    refusal(
        "openrouter",
        429,
        None,
        r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"their-model is temporarily rate-limited upstream. Please retry shortly.","provider_name":"P"}}}"#,
        Meaning::Busy,
    ),
    refusal(
        "openrouter",
        404,
        None,
        r#"{"error":{"message":"No endpoints found that support tool use.","code":404}}"#,
        Meaning::Missing,
    ),
    refusal(
        "ollama",
        404,
        None,
        r#"{"error":{"message":"model \"their-model\" not found, try pulling it first","type":"not_found_error","param":null,"code":null}}"#,
        Meaning::Missing,
    ),
    refusal(
        "ollama",
        400,
        None,
        r#"{"error":{"message":"registry.ollama.ai/library/their-model does not support tools","type":"api_error","param":null,"code":null}}"#,
        Meaning::Wrong,
    ),
    refusal(
        "zhipu",
        400,
        None,
        r#"{"contentFilter":[{"level":0,"role":"user"}],"error":{"code":"1301","message":"系统检测到输入或生成内容可能包含不安全或敏感内容，请您避免输入易产生敏感内容的提示语，感谢您的配合。"}}"#,
        Meaning::Refused,
    ),
    refusal(
        "zhipu",
        429,
        None,
        r#"{"error":{"code":"1113","message":"余额不足或无可用资源包,请充值。"}}"#,
        Meaning::Money,
    ),
    refusal(
        "zhipu",
        429,
        None,
        r#"{"error":{"code":"1302","message":"您当前使用该API的并发数过高，请降低并发，或联系客服增加限额。"}}"#,
        Meaning::Busy,
    ),
    refusal(
        "zhipu",
        400,
        None,
        r#"{"error":{"code":"1211","message":"模型不存在，请检查模型代码。"}}"#,
        Meaning::Missing,
    ),
    refusal("zhipu", 400, None, r#"{"error":{"code":"1261","message":"Prompt 超长"}}"#, Meaning::TooLong),
    refusal(
        "siliconflow",
        400,
        Some("x-siliconcloud-trace-id"),
        r#"{"code":20012,"message":"Model does not exist. Please check it carefully.","data":null}"#,
        Meaning::Missing,
    ),
    refusal(
        "siliconflow",
        403,
        None,
        r#"{"code":30001,"message":"Sorry, your account balance is insufficient","data":null}"#,
        Meaning::Money,
    ),
    refusal(
        "siliconflow",
        400,
        None,
        r#"{"code":20015,"message":"length of prompt_tokens (40000) must be less than max_seq_len (32768).","data":null}"#,
        Meaning::TooLong,
    ),
    refusal(
        "volcengine",
        400,
        None,
        r#"{"error":{"code":"SensitiveContentDetected","message":"The request failed because the input text may contain sensitive information. Request id: req-7","param":"","type":"BadRequest"}}"#,
        Meaning::Refused,
    ),
    refusal(
        "volcengine",
        403,
        None,
        r#"{"error":{"code":"AccountOverdueError","message":"The request failed because your account has an overdue balance. Request id: req-7","type":"Forbidden"}}"#,
        Meaning::Money,
    ),
    refusal(
        "volcengine",
        404,
        None,
        r#"{"error":{"code":"ModelNotOpen","message":"Your account 1 has not activated the model m.","type":"NotFound"}}"#,
        Meaning::Missing,
    ),
    refusal(
        "volcengine",
        429,
        None,
        r#"{"error":{"code":"RateLimitExceeded.EndpointRPMExceeded","message":"The Requests Per Minute (RPM) limit of the associated endpoint for your account has been exceeded.","type":"TooManyRequests"}}"#,
        Meaning::Busy,
    ),
    refusal(
        "minimax",
        200,
        None,
        r#"{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}"#,
        Meaning::Money,
    ),
    refusal("minimax", 200, None, r#"{"base_resp":{"status_code":1002,"status_msg":"rate limit"}}"#, Meaning::Busy),
    refusal(
        "minimax",
        200,
        None,
        r#"{"base_resp":{"status_code":1026,"status_msg":"input new_sensitive"}}"#,
        Meaning::Refused,
    ),
    refusal(
        "minimax",
        200,
        None,
        r#"{"base_resp":{"status_code":2013,"status_msg":"invalid params, context window exceeds limit"}}"#,
        Meaning::TooLong,
    ),
    refusal(
        "relay",
        403,
        None,
        r#"{"error":{"message":"用户额度不足, 剩余额度: ￥0.00 (request id: req-7)","type":"new_api_error","code":"insufficient_user_quota"}}"#,
        Meaning::Money,
    ),
];
