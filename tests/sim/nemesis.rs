//! Injects the faults of a simulation.

use std::time::Duration;

use tokio::time::sleep;

use crate::fake::{Counts, Fake};
use crate::net::{Machine, Way};
use crate::simulation::Stage;
use crate::world::World;

impl Stage {
    /// Injects a fault that is over after `span`. Returns whether a client was killed.
    pub(crate) fn inject(&mut self, span: Duration) -> bool {
        let Self { world, fake, net, .. } = self;
        let chosen = self.rng.within(0..=self.lives.len() as u64 - 1) as usize;
        let machine = self.lives[chosen].machine.clone();
        let way = self.rng.one_of(&[Way::Up, Way::Down]);
        let note = |what: &str| {
            world.log.note(|| format!("FAULT {what}: client {chosen}, {way:?}, {span:?}"))
        };
        let struck = |world: &World, times: usize| {
            world.count(|counts| counts.faults += usize::from(times > 0));
        };
        match self.rng.within(0..=11) {
            0 | 1 => {
                note("packets in one direction are held up");
                machine.hold(way);
                release_after(world, machine, vec![way], span);
            }
            2 => {
                note("the network is down");
                machine.hold(Way::Up);
                machine.hold(Way::Down);
                release_after(world, machine, vec![Way::Up, Way::Down], span);
            }
            9 | 10 => {
                note("packets on open streams are held up");
                machine.hold_open_streams(way);
                release_after(world, machine, vec![way], span);
            }
            3 => {
                note("streams break, and requests are lost");
                struck(world, machine.streams());
                machine.reset(false);
            }
            4 => {
                note("streams break after requests are delivered");
                struck(world, machine.streams());
                machine.reset(true);
            }
            5 => {
                note("streams fall silent");
                struck(world, machine.streams());
                machine.silence(way);
            }
            6 => {
                note("the client is killed");
                if machine.is_dead() {
                    return false;
                }
                machine.kill(self.rng.chance(50));
                self.lives[chosen].task.abort();
                struck(world, 1);
                world.count(|counts| counts.killed += 1);
                self.start_client();
                return true;
            }
            7 => {
                note("the server stalls");
                fake.stall(span);
                count_after(world, fake, span, |counts| counts.stalled);
            }
            8 => {
                note("messages are lost");
                fake.lose_messages(span);
                count_after(world, fake, span, |counts| counts.unheard);
            }
            _ if world.plan.may_forget => {
                note("the server is gone, and forgets");
                net.take_server_down(0);
                let at = world.log.note(|| "forgotten".to_owned());
                world.history.forgotten(at, fake.clock_us());
                fake.forget_all();
                struck(world, 1);
                world.count(|counts| counts.forgotten += 1);
                let net = net.clone();
                let _ended = tokio::spawn(async move {
                    sleep(span).await;
                    net.bring_server_up(0);
                });
            }
            _ => {
                note("scripts are forgotten");
                fake.forget_scripts();
                struck(world, 1);
            }
        }
        false
    }
}

/// Releases held-up packets after `span`. The fault struck if there are any.
fn release_after(world: &World, machine: Machine, ways: Vec<Way>, span: Duration) {
    let world = world.clone();
    let _ended = tokio::spawn(async move {
        sleep(span).await;
        let held_up: usize = ways.iter().map(|way| machine.held_up(*way)).sum();
        let strikes = held_up > 0 && !machine.is_dead();
        world.count(|counts| counts.faults += usize::from(strikes));
        for way in ways {
            machine.release(way);
        }
    });
}

/// Counts the fault after `span` if the server has counted more of `what` by then.
fn count_after(world: &World, fake: &Fake, span: Duration, what: fn(Counts) -> usize) {
    let (world, fake, before) = (world.clone(), fake.clone(), what(fake.counts()));
    let _ended = tokio::spawn(async move {
        sleep(span).await;
        let strikes = what(fake.counts()) > before;
        world.count(|counts| counts.faults += usize::from(strikes));
    });
}
