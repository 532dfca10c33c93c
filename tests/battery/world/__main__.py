"""Runs simulated worlds. The clocks of this process are replaced before anything else is imported: many functions have
one of them as the default of a parameter."""

from tests.battery.world import clock

if __name__ == "__main__":
    assert clock
    from tests.battery.world.simulate import main

    main()
