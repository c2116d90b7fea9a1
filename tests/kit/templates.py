"""Chat templates of our own, each with one fault that real ones have."""

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Begins without a BOS: the default model's is what begins each message."""
WITH_BOS = "{{ bos_token }}" + PLAIN
BOS_AT_EACH_QUESTION = PLAIN.replace(
    "<|im_start|>{{", "{% if m.role == 'user' %}{{ bos_token }}{% endif %}<|im_start|>{{"
)
DATED = "<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n"
PRINTS_THE_DATE = DATED + PLAIN
DATES_EACH_QUESTION = PLAIN.replace(
    "{{ m.content }}",
    "{% if m.role == 'user' %}{{ strftime_now('%H:%M:%S') }} {% endif %}{{ m.content }}",
)
STRIPS_REASONING = PLAIN.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}",
)
STRIPS_DIVISIONS = STRIPS_REASONING.replace("'</think>'", "'</div>'")
"""The default model has no reasoning, but it can be talked into writing this mark."""
ADDS_AN_EMPTY_THOUGHT = PLAIN.replace(
    "assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}"
)
SHOWS_THE_LAST_THOUGHT = PLAIN.replace(
    "{{ m.content }}",
    "{% if m.role != 'assistant' %}{{ m.content }}"
    "{% elif not loop.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% elif '</think>' in m.content %}{{ m.content }}"
    "{% else %}<think>\n\n</think>\n\n{{ m.content }}{% endif %}",
)
"""As the Qwen family does: a last reply has a thought, if an empty one; earlier ones have none."""
OPENS_A_THOUGHT = STRIPS_REASONING.replace(
    "assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"
)
MARKS_EARLIER_QUESTIONS = PLAIN.replace(
    "{{ m.content }}",
    "{% if m.role == 'user' and not loop.last %}[before] {% endif %}{{ m.content }}",
)
COUNTS_MESSAGES = PLAIN.replace("{{ m.content }}", "{{ loop.index }}. {{ m.content }}")
JOINS_TOKENS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""No special token stands between messages, so that tokens may reach over their borders."""
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
) + PLAIN
DROPS_SYSTEM = PLAIN.replace(
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n",
    "{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}",
)
CALLS = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
    {{- 'You may call one or more functions. They are:\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}
    {{- '\n</tools>\nWrite each call as\n<tool_call>\n' }}
    {{- '{"name": <name>, "arguments": <arguments as JSON>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
    {%- elif m.role == 'assistant' and m.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if m.content %}{{- '\n' + m.content }}{% endif %}
        {%- for call in m.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
"""As the Hermes and Qwen families do: functions in the system's message, calls between marks."""
