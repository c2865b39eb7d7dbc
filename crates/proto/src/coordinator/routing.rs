//! What the nodes of a pair report to each other about how they connect: see [`crate::route`].

use super::{Action, Coordinator};
use crate::control::{self, Peer, Route, route, to_agent};

impl Coordinator {
    /// Passes on what a node tells its peer. Where the peer is not there any more, the node is told so.
    pub(super) fn handle_route(&mut self, from: u32, told: Route) {
        let to = told.node;
        let peer = self.nodes.get(to as usize);
        let is_there = peer.is_some_and(|node| node.alive() && node.opened.is_some());
        let (to, step) = match told.step {
            Some(route::Step::Dial(_)) if is_there => (to, route::Step::Dial(self.peer(from))),
            Some(route::Step::Dial(Peer { .. })) => {
                let why = format!("{} is not there any more", self.name(to));
                return self.send_route(from, to, route::Step::Failed(why));
            }
            Some(route::Step::Failed(why)) if is_there => (to, route::Step::Failed(why)),
            Some(route::Step::Carry(_)) if is_there => {
                return self.out.push(Action::Carry {
                    receiver: from,
                    sender: to,
                });
            }
            Some(route::Step::Carry(_)) => {
                let why = format!("{} is not there any more", self.name(to));
                return self.handle_uncarried(from, to, why);
            }
            Some(route::Step::Through(why)) => {
                let (receiver, sender) = (self.name(from), self.name(to));
                return self.note(format!(
                    "data from {sender} to {receiver} goes through this host, which is slower: {why}; \
                     open the TCP ports given by --ports (for standing agents: --listen)"
                ));
            }
            Some(route::Step::Failed(_) | route::Step::Uncarried(_)) | None => return,
        };
        self.send_route(to, from, step);
    }

    /// The driver could not connect the two for a receiver that asked.
    pub fn handle_uncarried(&mut self, receiver: u32, sender: u32, why: String) {
        self.send_route(receiver, sender, route::Step::Uncarried(why));
    }

    fn send_route(&mut self, to: u32, about: u32, step: route::Step) {
        let step = Some(step);
        self.send(
            to,
            to_agent::Body::Route(control::Route { node: about, step }),
        );
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_model::Instant;

    use crate::control::{Peer, Route, from_agent, route::Step};
    use crate::control::{ToAgent, to_agent};
    use crate::coordinator::tests::{SECOND, from, node, started};
    use crate::coordinator::{Action, Coordinator};

    /// What nodes tell each other about their connection is passed on with addresses; of one that is gone they hear at once.
    #[test]
    fn pairs_are_told_how_to_connect() {
        let nodes = vec![
            node("a", &[(0, 1000)], &[], None),
            node("b", &[], &[(0, 1000)], None),
        ];
        let (mut master, _) = started(nodes);
        let say = |node, step| {
            from(from_agent::Body::Route(Route {
                node,
                step: Some(step),
            }))
        };
        let routes = |master: &mut Coordinator| {
            let mut all = Vec::new();
            while let Some(action) = master.poll_action() {
                match action {
                    Action::Send(
                        to,
                        ToAgent {
                            body: Some(to_agent::Body::Route(route)),
                        },
                    ) => {
                        all.push((to, route.node, format!("{:?}", route.step.unwrap())));
                    }
                    Action::Note(text) => all.push((u32::MAX, 0, text)),
                    _ => {}
                }
            }
            all
        };
        routes(&mut master);
        master.handle_message(1, say(0, Step::Dial(Peer::default())), Instant(SECOND));
        let asked = routes(&mut master);
        assert_eq!((asked[0].0, asked[0].1), (0, 1), "{asked:?}");
        assert!(asked[0].2.contains("name: \"b\""), "{asked:?}");
        master.handle_message(0, say(1, Step::Failed("no answer".into())), Instant(SECOND));
        let failed = routes(&mut master);
        assert!(failed[0].0 == 1 && failed[0].1 == 0 && failed[0].2.contains("no answer"));
        master.handle_message(
            1,
            say(0, Step::Through("b gets no answer".into())),
            Instant(SECOND),
        );
        let noted = routes(&mut master).remove(0).2;
        assert!(
            noted.starts_with(
                "data from a to b goes through this host, which is slower: b gets no answer"
            ),
            "{noted}"
        );
        master.handle_message(1, say(0, Step::Carry(true)), Instant(SECOND));
        let is_carry = |action| {
            matches!(
                action,
                Action::Carry {
                    receiver: 1,
                    sender: 0
                }
            )
        };
        let carried = std::iter::from_fn(|| master.poll_action()).any(is_carry);
        assert!(carried);
        master.handle_uncarried(1, 0, "no port".into());
        let told = routes(&mut master).remove(0);
        assert!(told.0 == 1 && told.2.contains("no port"), "{told:?}");
        master.handle_message(1, say(9, Step::Carry(true)), Instant(SECOND));
        assert!(routes(&mut master)[0].2.contains("not there any more"));
        // Nodes that there are not, and words without a step, change nothing.
        master.handle_message(1, say(9, Step::Failed(String::new())), Instant(SECOND));
        assert!(routes(&mut master).is_empty());
        master.handle_message(1, say(9, Step::Dial(Peer::default())), Instant(SECOND));
        assert!(routes(&mut master)[0].2.contains("not there any more"));
    }
}
