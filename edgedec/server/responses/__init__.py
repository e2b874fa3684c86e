"""OpenAI's Responses: input items to a chat, its text to output items and their events, kept to be continued from."""
