//! `mcprl serve`: the real binary, tiny models, plain HTTP.

mod agent;
mod endpoint;
mod played;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::common::Project;

/// A server that ends with the test.
pub struct Served {
    child: Child,
    pub host: String,
    pub models: Vec<String>,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Served {
    /// `mcprl serve` with these arguments.
    pub fn new(project: &Project, arguments: &[&str]) -> Self {
        Self::with(project, arguments, &[])
    }

    pub fn with(project: &Project, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = project.command(&[&["serve", "--json", "--port", "0"], arguments].concat());
        command.envs(variables.iter().copied());
        let log = std::fs::File::options().create(true).append(true).open(project.path("serve.log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let shown: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("it does not listen: {line}{}", project.read("serve.log")));
        let host = shown["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        let models = serde_json::from_value(shown["models"].clone()).unwrap();
        Self { child, host, models }
    }

    /// A connection on which this request was sent. HTTP/1.0, so that the end of the body is that of the connection.
    pub fn open(&self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let mut head = format!("{line} HTTP/1.0\r\n");
        let length = body.len().to_string();
        let own = [("Host", self.host.as_str()), ("Content-Length", length.as_str())];
        let given = |name: &str| headers.iter().any(|(other, _)| *other == name);
        for (name, value) in own.iter().filter(|(name, _)| !given(name)).chain(headers) {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // A server that refuses by the head does not read the rest.
        _ = stream.write_all(body);
        stream
    }

    pub fn request(&self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut text = Vec::new();
        _ = self.open(line, headers, body).read_to_end(&mut text);
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path}"), &[], &[])
    }

    /// Status and body of a chat completion.
    pub fn chat(&self, request: &Value) -> (u16, Value) {
        let answer = self.request("POST /v1/chat/completions", &[], request.to_string().as_bytes());
        (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{}", answer.body)))
    }

    /// The answer to a request that succeeds.
    pub fn completion(&self, request: &Value) -> Value {
        let (status, body) = self.chat(request);
        assert_eq!(status, 200, "{body}");
        body
    }

    /// The chunks of a stream.
    pub fn chunks(&self, request: &Value) -> Vec<Value> {
        let mut request = request.clone();
        request["stream"] = true.into();
        let answer = self.request("POST /v1/chat/completions", &[], request.to_string().as_bytes());
        assert!(answer.head.contains("text/event-stream"), "{}\n{}", answer.head, answer.body);
        let mut data: Vec<&str> =
            answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", answer.body);
        data.into_iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }

    /// Ends it by SIGTERM.
    pub fn terminate(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What chunks add up to, as a client adds them: the choices of the whole completion, and its usage.
pub fn added(chunks: &[Value]) -> Value {
    let mut whole = json!({"choices": []});
    for chunk in chunks {
        if !chunk["usage"].is_null() {
            whole["usage"] = chunk["usage"].clone();
        }
        for choice in chunk["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            let all = whole["choices"].as_array_mut().unwrap();
            while all.len() <= index {
                let message = json!({"content": null, "refusal": null});
                all.push(
                    json!({"index": all.len(), "message": message, "finish_reason": null, "logprobs": null}),
                );
            }
            let own = &mut all[index];
            assert!(own["finish_reason"].is_null(), "nothing follows the end: {chunk}");
            own["finish_reason"] = choice["finish_reason"].clone();
            own["logprobs"] = choice["logprobs"].clone();
            for (name, value) in choice["delta"].as_object().unwrap() {
                let message = &mut own["message"];
                match value {
                    Value::Array(calls) => {
                        for call in calls {
                            let mut call = call.clone();
                            let index = call.as_object_mut().unwrap().remove("index").unwrap();
                            if message[name].is_null() {
                                message[name] = json!([]);
                            }
                            let all = message[name].as_array_mut().unwrap();
                            assert_eq!(index, all.len(), "a call is sent once, whole");
                            all.push(call);
                        }
                    }
                    value => {
                        assert!(name != "role" || message[name].is_null(), "the role is sent once");
                        let before = message[name].as_str().unwrap_or_default();
                        message[name] = format!("{before}{}", value.as_str().unwrap()).into();
                    }
                }
            }
        }
    }
    for choice in whole["choices"].as_array_mut().unwrap() {
        let message = &mut choice["message"];
        if message["content"] == "" && !message["tool_calls"].is_null() {
            message["content"] = Value::Null;
        }
    }
    whole
}

pub fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}
