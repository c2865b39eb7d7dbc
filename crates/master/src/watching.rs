//! `top`: agents of other hosts, asked again and again for what they do. What that means is [`ropewalk_proto::top`]'s.
//!
//! ```text
//!  reach all, ssh may ask at the terminal ─▶ a task for each: ask once a second ─▶ its last answer
//!                                              ▲ broken: reach it again, without questions ┘
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ropewalk_proto::control::{self, StatusReply, ToAgent, from_agent, to_agent};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::reach::{self, Failure, Reached};
use crate::request::{NodeRequest, Options, Reach};

/// Between two questions to an agent.
const EVERY: Duration = Duration::from_secs(1);

/// An agent answers at once or not at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Before an agent that was lost, or was not reached, is tried again: a login over ssh takes half a second of its host.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// An agent to ask.
#[derive(Clone, Debug)]
pub struct WatchedHost {
    /// Its name.
    pub name: String,
    /// How its agent is reached.
    pub reach: Reach,
}

/// What agents answered last, or why they do not.
type Last = Arc<Mutex<Result<StatusReply, String>>>;

/// Agents that are asked once a second until this is dropped.
pub struct Watched {
    tasks: Vec<JoinHandle<()>>,
    last: Vec<Last>,
}

impl Watched {
    /// Reaches all of them, and asks each once. With `options.ask` ssh may ask at the terminal until this returns, and not afterwards.
    pub async fn start(hosts: &[WatchedHost], options: &Options) -> Self {
        let nodes: Vec<NodeRequest> = hosts.iter().map(node).collect();
        let answers = reach_all(&nodes, options).await;
        let options = Arc::new(Options {
            ask: false,
            ..options.clone()
        });
        let mut watched = Self {
            tasks: Vec::new(),
            last: Vec::new(),
        };
        let mut firsts = Vec::new();
        for (reached, node) in answers.into_iter().zip(nodes) {
            let (asked, first) = oneshot::channel();
            firsts.push(first);
            let last = Arc::new(Mutex::new(Err(format!("{}: not asked yet", node.name))));
            watched.last.push(last.clone());
            let asking = keep_asking(reached, node, options.clone(), last, asked);
            watched.tasks.push(tokio::spawn(asking));
        }
        for first in firsts {
            // A task that failed has left its error.
            let _ = first.await;
        }
        watched
    }

    /// The last answer of each, in their order, or why there is none.
    pub fn answers(&self) -> Vec<Result<StatusReply, String>> {
        let read = |last: &Last| last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.last.iter().map(read).collect()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Agents that were started end with their input.
        for task in &self.tasks {
            task.abort();
        }
    }
}

fn node(host: &WatchedHost) -> NodeRequest {
    NodeRequest::without_part(host.name.as_str(), host.reach.clone())
}

async fn reach_all(nodes: &[NodeRequest], options: &Options) -> Vec<Result<Reached, Failure>> {
    reach::reach_each(nodes, options, false, None, BTreeMap::new(), |_| {}).await
}

/// Asks until it is dropped, at first at once.
///
/// * `asked`: completes with the first answer.
async fn keep_asking(
    reached: Result<Reached, Failure>,
    node: NodeRequest,
    options: Arc<Options>,
    last: Last,
    asked: oneshot::Sender<()>,
) {
    let keep = |answer| *last.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    let mut reached = match reached {
        Ok(mut reached) => {
            keep(ask(&mut reached, &node).await);
            Some(reached)
        }
        Err(failure) => {
            keep(Err(failure.text));
            None
        }
    };
    let _ = asked.send(());
    loop {
        let pause = if reached.is_some() {
            EVERY
        } else {
            AGAIN_AFTER
        };
        tokio::time::sleep(pause).await;
        let answer = match &mut reached {
            Some(reached) => ask(reached, &node).await,
            None => {
                let answers = reach_all(std::slice::from_ref(&node), &options).await;
                match answers.into_iter().next() {
                    Some(Ok(again)) => ask(reached.insert(again), &node).await,
                    Some(Err(failure)) => Err(failure.text),
                    None => continue,
                }
            }
        };
        if answer.is_err()
            && let Some(broken) = reached.take()
        {
            reach::send_away(vec![broken]).await;
        }
        keep(answer);
    }
}

/// Asks an agent once; one that was started for this says what its user's processes do on its host, too.
async fn ask(reached: &mut Reached, node: &NodeRequest) -> Result<StatusReply, String> {
    let query = control::StatusQuery {
        around: !matches!(node.reach, Reach::Attached { .. }),
        ..control::StatusQuery::default()
    };
    let message = ToAgent {
        body: Some(to_agent::Body::StatusQuery(query)),
    };
    let broken = |text: String| format!("{}: the connection broke: {text}", node.name);
    let asking = async {
        let sent = reached.link.writer.write(&control::encode(&message)).await;
        sent.map_err(|error| broken(error.to_string()))?;
        loop {
            let read = reached.link.reader.read().await;
            match read.map_err(|error| broken(error.to_string()))?.0.body {
                Some(from_agent::Body::StatusReply(reply)) => return Ok(reply),
                Some(from_agent::Body::Refused(refused)) => {
                    return Err(format!("{}: {}", node.name, refused.message));
                }
                _ => {}
            }
        }
    };
    let silent = || {
        let seconds = ANSWER_TIMEOUT.as_secs();
        broken(format!("no answer within {seconds} s; see the agent's log"))
    };
    tokio::time::timeout(ANSWER_TIMEOUT, asking)
        .await
        .unwrap_or_else(|_| Err(silent()))
}
