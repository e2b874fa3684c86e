"""OpenAI's Responses: input items to a chat, its text to output items and their events; responses are stored for
continuation."""
