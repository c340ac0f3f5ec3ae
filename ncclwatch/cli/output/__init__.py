"""How answers look: tables, Markdown, HTML, JSON."""
