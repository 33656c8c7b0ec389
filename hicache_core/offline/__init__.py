"""Looking after a store from outside: no session, no identity, only keys and sealed bytes."""
