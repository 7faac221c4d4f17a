"""The round and its seven beats; server and site state; sharing."""
