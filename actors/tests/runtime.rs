//! The actor runtime, killed, panicked, stalled and flooded.

use heddle_actors::runtime::*;
use heddle_core::fault::Fault;

struct Counter {
    count: u32,
}

enum Count {
    Add(u32),
    Panic,
    Get(Reply<u32>),
}

impl Message for Count {
    fn kind(&self) -> &'static str {
        match self {
            Self::Add(_) => "Add",
            Self::Panic => "Panic",
            Self::Get(_) => "Get",
        }
    }
}

impl Actor for Counter {
    const KIND: &'static str = "Counter";
    type Message = Count;

    fn handle(&mut self, message: Count, _cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Count::Add(n) => self.count += n,
            Count::Panic => panic!("told to"),
            Count::Get(reply) => reply.send(self.count),
        }
        Ok(())
    }
}

#[test]
fn an_address_survives_a_panic_and_so_do_the_messages_behind_it() {
    block_on(async {
        tokio::time::pause();
        let runtime = Runtime::new();
        let counter = runtime.root().supervise(Spec::default(), || Ok(Counter { count: 0 }));
        counter.tell(Count::Add(1));
        counter.tell(Count::Panic);
        counter.tell(Count::Add(2));
        assert_eq!(counter.ask(Count::Get).await, Ok(2));
    });
}
