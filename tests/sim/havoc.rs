//! The faults.

use std::time::Duration;

use tokio::time::sleep;

use crate::net::Way;
use crate::world::Stage;

impl Stage {
    /// Injects one that is over after `span`. Whether a client was killed.
    pub(crate) fn inject(&mut self, span: Duration) -> bool {
        let Self { world, fake, net, .. } = self;
        let chosen = self.dice.within(0..=self.lives.len() as u64 - 1) as usize;
        let machine = self.lives[chosen].machine.clone();
        let way = self.dice.one_of(&[Way::Up, Way::Down]);
        let note = |what: &str| {
            world.log.note(|| format!("FAULT {what}: client {chosen}, {way:?}, {span:?}"))
        };
        match self.dice.within(0..=11) {
            0 | 1 => {
                note("packets in one direction are held up");
                machine.hold(way);
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    machine.release(way);
                });
            }
            2 => {
                note("the network is down");
                machine.hold(Way::Up);
                machine.hold(Way::Down);
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    machine.release(Way::Up);
                    machine.release(Way::Down);
                });
            }
            9 | 10 => {
                note("packets on open streams are held up");
                machine.hold_open_streams(way);
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    machine.release(way);
                });
            }
            3 => {
                note("streams break, with what was asked for");
                machine.reset(false);
            }
            4 => {
                note("streams break behind what was asked for");
                machine.reset(true);
            }
            5 => {
                note("streams fall silent");
                machine.silence(way);
            }
            6 => {
                note("the client is killed");
                if machine.is_dead() {
                    return false;
                }
                machine.kill(self.dice.chance(50));
                self.lives[chosen].task.abort();
                world.count(|counts| counts.killed += 1);
                self.start_client();
                return true;
            }
            7 => {
                note("the server stalls");
                fake.stall(span);
            }
            8 => {
                note("messages are lost");
                fake.lose_messages(span);
            }
            _ if world.plan.may_forget => {
                note("the server is gone, and forgets");
                net.take_server_down();
                let at = world.log.note(|| "forgotten".to_owned());
                world.history.forgotten(at, fake.clock_us());
                fake.forget_all();
                world.count(|counts| counts.forgotten += 1);
                let net = net.clone();
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    net.bring_server_up();
                });
            }
            _ => {
                note("scripts are forgotten");
                fake.forget_scripts();
            }
        }
        false
    }
}
