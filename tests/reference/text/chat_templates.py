"""Chat templates for the tests, each written for them in the manner of a model family.

They use the constructs that the families' published templates use; the texts are our own.
"""

TEMPLATES = {}

TEMPLATES["chatml-tools"] = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- else %}
        {{- 'You are a test assistant.\\n\\n' }}
    {%- endif %}
    {{- "# Functions\\n\\nCall these when they help. They are listed inside <functions></functions>:\\n<functions>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</functions>\\n\\nAnswer with <call>{\\"name\\": ..., \\"arguments\\": ...}</call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a test assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<result>\\n' }}
        {{- message.content }}
        {{- '\\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

TEMPLATES["thinking"] = """\
{%- set ns = namespace(multi_step=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not (message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role in ["user", "system"] %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- set call = tool_call.function if tool_call.function else tool_call %}
                {{- '<call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
                {%- if call.arguments is string %}
                    {{- call.arguments }}
                {%- else %}
                    {{- call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<result>\\n' ~ content ~ '\\n</result><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

TEMPLATES["headers-date"] = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header|>system<|end_header|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: test\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "Functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there is none!") }}
{%- endif %}
    {{- '<|start_header|>user<|end_header|>\\n\\n' -}}
    {{- "Functions, one of which you may call:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header|>' + message['role'] + '<|end_header|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model makes one call at a time!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header|>assistant<|end_header|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header|>result<|end_header|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header|>assistant<|end_header|>\\n\\n' }}
{%- endif %}
"""

TEMPLATES["inst-alternating"] = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Roles must alternate; tool results do not count. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "][/TOOLS]" }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[CALLS][" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be 9 characters long!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULTS]{"content": ' + content|string + ", " }}
        {{- '"id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES["flags-namespace"] = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}\
{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}\
{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}\
{{ bos_token }}{{ ns.system_prompt }}\
{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}\
{{'<User>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}\
{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}\
{%- if message['content'] is none %}{{'<Assistant><calls><call>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments']|string + '\\n```<end>'}}\
{%- else %}{{'<Assistant>' + message['content'] + '<calls><call>' + tool['type'] + '<sep>' + tool['function']['name'] + '<end>'}}{%- endif %}\
{%- set ns.is_first = true -%}{%- else %}{{'\\n<call>' + tool['function']['name'] + '<end>'}}{%- endif %}{%- endfor %}{{'</calls><eos>'}}{%- endif %}\
{%- if message['role'] == 'assistant' and (message['tool_calls'] is not defined or message['tool_calls'] is none) %}\
{%- if ns.is_tool %}{{'</outputs>' + message['content'] + '<eos>'}}{%- set ns.is_tool = false -%}\
{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<Assistant>' + content + '<eos>'}}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<outputs><output>' + message['content'] + '</output>'}}\
{%- set ns.is_output_first = false %}{%- else %}{{'\\n<output>' + message['content'] + '</output>'}}{%- endif %}{%- endif %}{%- endfor -%}\
{% if ns.is_tool %}{{'</outputs>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<Assistant><think>\\n'}}{% endif %}
"""

TEMPLATES["turns-parts"] = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '</turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model\\n'}}
{%- endif -%}
"""

TEMPLATES["small-chatml"] = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a small test assistant<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}
"""

TEMPLATES["macro-xml"] = """\
{#- Marks and macros -#}
{%- set open = '<calls>' -%}
{%- set close = '</calls>' -%}
{%- macro render_tool_namespace(namespace_name, tool_list) -%}
{%- for tool in tool_list -%}
<tool ns="{{ namespace_name }}">{{ tool.function | tojson(ensure_ascii=False) }}</tool>
{% endfor -%}
{%- endmacro -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{ content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- macro build_system_message(system_message) -%}
    {%- if system_message and system_message.content -%}
        {{- visible_text(system_message.content) }}
    {%- else -%}
        {%- if model_identity is not defined -%}
            {%- set model_identity = "You are a test assistant." -%}
        {%- endif -%}
        {{- model_identity }}
    {%- endif -%}
    {%- if system_message and system_message.current_date -%}
        {{- '\\n' ~ 'Date: ' + system_message.current_date }}
    {%- endif -%}
{%- endmacro -%}
{%- set system_message = none -%}
{%- set conversation = messages -%}
{%- if messages and messages[0].role == "system" -%}
    {%- set system_message = messages[0] -%}
    {%- set conversation = messages[1:] -%}
{%- endif -%}
{%- set ns = namespace(last_user_index=-1) %}
{% for m in conversation %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{{- ']~b]system' ~ '\\n' }}
{{- build_system_message(system_message) }}
{%- if tools -%}
    {{- '\\n\\n' ~ '# Tools' ~ '\\n' ~ '<tools>' ~ '\\n' }}
    {{- render_tool_namespace("functions", tools) }}
    {{- '</tools>' ~ '\\n' }}
{{- open + '\\n' }}
<invoke name="example">
<parameter name="key">value</parameter>
</invoke>
{{- '\\n' + close }}
{%- endif -%}
{{- '[e~[\\n' }}
{%- set last_tool_call = namespace(name=none) -%}
{%- for message in conversation -%}
    {%- if message.role == 'assistant' -%}
        {{- ']~b]ai' ~ '\\n' }}
        {%- set reasoning_content = '' %}
        {%- set content = visible_text(message.content) %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].strip('\\n').split('<think>')[-1].strip('\\n') %}
                {%- set content = content.split('</think>')[-1].strip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if reasoning_content and loop.index0 > ns.last_user_index -%}
            {{- '<think>' ~ '\\n' ~ reasoning_content ~ '\\n' ~ '</think>' ~ '\\n\\n' }}
        {%- endif -%}
        {%- if content -%}
            {{- content }}
        {%- endif -%}
        {%- if message.tool_calls -%}
            {{- '\\n' ~ open ~ '\\n' }}
            {%- for tool_call in message.tool_calls -%}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<invoke name="' + tool_call.name + '">' }}
                {% set _args = tool_call.arguments %}
                {%- if _args is mapping %}
                {%- for k, v in _args.items() %}
                {{- '<parameter name="' + k + '">' }}
                {{- v | tojson(ensure_ascii=False) if v is not string else v }}
                {{- '</parameter>' }}
                {% endfor %}
                {%- endif %}
                {{- '</invoke>' ~ '\\n' }}
            {%- endfor -%}
            {{- close }}
            {%- set last_tool_call.name = message.tool_calls[-1].name -%}
        {%- else -%}
            {%- set last_tool_call.name = none -%}
        {%- endif -%}
        {{- '[e~[' ~ '\\n' }}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or (conversation[loop.index0 - 1].role != 'tool') -%}
            {{- ']~b]tool' }}
        {%- endif -%}
        {%- if message.content is string -%}
            {{- '\\n<response>' }}{{- message.content }}{{- '</response>' }}
        {%- else -%}
            {%- for tr in message.content -%}
                {{- '\\n<response>' }}
                {{- tr.output if tr.output is defined else (tr.text if tr.type == 'text' and tr.text is defined else tr) }}
                {{- '\\n</response>' }}
            {%- endfor -%}
        {%- endif -%}
        {%- if loop.last or (conversation[loop.index0 + 1].role != 'tool') -%}
            {{- '[e~[\\n' -}}
        {%- endif -%}
    {%- elif message.role == 'user' -%}
        {{- ']~b]user' ~ '\\n' }}
        {{- visible_text(message.content) }}
        {{- '[e~[' ~ '\\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- ']~b]ai' ~ '\\n' ~ '<think>' ~ '\\n' }}
{%- endif -%}
"""

TEMPLATES["open-thinking"] = """\
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{ content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- elif content is none -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set system_message = none -%}
{%- set conversation = messages -%}
{%- if messages and messages[0].role == "system" -%}
    {%- set system_message = messages[0] -%}
    {%- set conversation = messages[1:] -%}
{%- endif -%}
{%- set ns = namespace(last_user_index=-1) -%}
{%- for m in conversation -%}
    {%- if m.role == 'user' -%}
        {%- set ns.last_user_index = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{{- '[b]system' ~ '\n' }}
{{- visible_text(system_message.content) if system_message and system_message.content else 'You help with tests.' }}
{%- if system_message and system_message.current_date -%}
    {{- '\nToday: ' ~ system_message.current_date }}
{%- endif -%}
{%- if tools -%}
    {{- '\n\n# Tools\n<tools>' ~ '\n' }}
    {%- for tool in tools -%}
        <tool>{{ tool.function | tojson(ensure_ascii=False) }}</tool>{{ '\n' }}
    {%- endfor -%}
    {{- '</tools>\n' }}
{%- endif -%}
{{- '[e]\n' }}
{%- for message in conversation -%}
    {%- if message.role == 'assistant' -%}
        {{- '[b]ai' ~ '\n' }}
        {%- set reasoning_content = '' -%}
        {%- set content = visible_text(message.content) -%}
        {%- if message.reasoning_content is string -%}
            {%- set reasoning_content = message.reasoning_content -%}
        {%- elif '</think>' in content -%}
            {%- set reasoning_content = content.split('</think>')[0].strip('\n').split('<think>')[-1].strip('\n') -%}
            {%- set content = content.split('</think>')[-1].strip('\n') -%}
        {%- endif -%}
        {%- if reasoning_content and loop.index0 > ns.last_user_index -%}
            {{- '<think>' ~ '\n' ~ reasoning_content ~ '\n' ~ '</think>' ~ '\n\n' }}
        {%- endif -%}
        {%- if content -%}
            {{- content }}
        {%- endif -%}
        {%- if message.tool_calls -%}
            {{- '\n<calls>\n' }}
            {%- for tool_call in message.tool_calls -%}
                {%- if tool_call.function -%}
                    {%- set tool_call = tool_call.function -%}
                {%- endif -%}
                {{- '<invoke name="' + tool_call.name + '">' }}
                {%- set _args = tool_call.arguments -%}
                {%- for k, v in _args.items() -%}
                    {{- '<parameter name="' + k + '">' }}
                    {{- v | tojson(ensure_ascii=False) if v is not string else v }}
                    {{- '</parameter>' }}
                {%- endfor -%}
                {{- '</invoke>' ~ '\n' }}
            {%- endfor -%}
            {{- '</calls>' }}
        {%- endif -%}
        {{- '[e]' ~ '\n' }}
    {%- elif message.role == 'tool' -%}
        {%- if loop.first or (conversation[loop.index0 - 1].role != 'tool') -%}
            {{- '[b]tool' }}
        {%- endif -%}
        {%- if message.content is string -%}
            {{- '\n<response>' ~ message.content ~ '</response>' }}
        {%- else -%}
            {%- for part in message.content -%}
                {{- '\n<response>' ~ (part.output if part.output is defined else part.text if part.type == 'text' and part.text is defined else part) ~ '</response>' }}
            {%- endfor -%}
        {%- endif -%}
        {%- if loop.last or (conversation[loop.index0 + 1].role != 'tool') -%}
            {{- '[e]\n' }}
        {%- endif -%}
    {%- elif message.role == 'user' -%}
        {{- '[b]user' ~ '\n' ~ visible_text(message.content) ~ '[e]\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '[b]ai' ~ '\n' ~ '<think>' ~ '\n' }}
{%- endif -%}
"""

TEMPLATES["typescript-schema"] = """\
{%- macro type_of(spec, required=false, depth=0) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] is defined -%}
            {{- type_of(spec['items'], depth=depth + 1) + "[]" }}
        {%- else -%}any[]{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.oneOf -%}
        {%- for variant in spec.oneOf -%}
            {{- type_of(variant) -}}
            {%- if not loop.last %} | {% endif -%}
        {%- endfor -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}{{- '"' + spec.enum|join('" | "') + '"' -}}
        {%- else -%}string{%- if spec.nullable %} | null{% endif -%}{%- endif -%}
    {%- elif spec.type in ["number", "integer"] -%}number
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\\n" }}
            {%- for name, prop in spec.properties.items() -%}
                {{- "  " * depth + name -}}
                {%- if name not in (spec.required or []) -%}{{- "?" }}{%- endif -%}
                {{- ": " }}{{ type_of(prop, name in (spec.required or []), depth + 1) }}
                {%- if prop.default is defined %} /* default: {{ prop.default | tojson }} */{% endif -%}
                {%- if not loop.last -%}{{-", " }}{%- endif -%}
            {%- endfor -%}
            {{- "}" }}
        {%- else -%}object{%- endif -%}
    {%- else -%}any{%- endif -%}
{%- endmacro -%}
{%- if tools %}{{ "namespace functions {\\n" }}
{%- for tool in tools %}
{%- set tool = tool.function %}
// {{ tool.description }}
type {{ tool.name }} = (_: {{ type_of(tool.parameters, depth=1) }}) => any;
{% endfor %}{{ "}" }}
{% endif %}
{%- for message in messages if message.role != 'tool' %}
{{ loop.index }}/{{ loop.length }} {{ message.role | upper }}: {{ message.content | default('', true) | string | indent(2) }}
{%- endfor %}
{% generation %}{{ eos_token }}{% endgeneration %}
"""

TEMPLATES["harmony"] = """\
{#-
  Besides `messages` and `tools` it takes "builtin_tools" (a list of "browser", "python"), "model_identity" and
  "reasoning_effort".
 #}

{#- Tools ============================================== #}
{%- macro type_of(spec, required_params, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- if spec['items']['type'] == "string" -%}
                {{- "string[]" }}
            {%- elif spec['items']['type'] == "integer" -%}
                {{- "number[]" }}
            {%- else -%}
                {%- set inner = type_of(spec['items'], required_params) -%}
                {%- if inner == "object | object" or inner|length > 30 -%}
                    {{- "any[]" }}
                {%- else -%}
                    {{- inner + "[]" }}
                {%- endif -%}
            {%- endif -%}
            {%- if spec.nullable -%}
                {{- " | null" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {%- if spec.type | length > 1 -%}
            {{- spec.type | join(" | ") }}
        {%- else -%}
            {{- spec.type[0] }}
        {%- endif -%}
    {%- elif spec.oneOf -%}
        {%- set has_objects = false -%}
        {%- for variant in spec.oneOf -%}
            {%- if variant.type == "object" -%}
                {%- set has_objects = true -%}
            {%- endif -%}
        {%- endfor -%}
        {%- if has_objects and spec.oneOf|length > 1 -%}
            {{- "any" }}
        {%- else -%}
            {%- for variant in spec.oneOf -%}
                {{- type_of(variant, required_params) -}}
                {%- if variant.description %}
                    {{- "// " + variant.description }}
                {%- endif -%}
                {%- if variant.default is defined %}
                    {{ "// default: " + variant.default|tojson }}
                {%- endif -%}
                {%- if not loop.last %}
                    {{- " | " }}
                {% endif -%}
            {%- endfor -%}
        {%- endif -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}
            {{- '"' + spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}
            {%- if spec.nullable %}
                {{- " | null" }}
            {%- endif -%}
        {%- endif -%}
    {%- elif spec.type == "integer" -%}
        {{- "number" }}
    {%- elif spec.type == "number" -%}
        {{- "number" }}

    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{
" }}
            {%- for name, prop in spec.properties.items() -%}
                {{- name -}}
                {%- if name not in (spec.required or []) -%}
                    {{- "?" }}
                {%- endif -%}
                {{- ": " }}
                {{ type_of(prop, spec.required or []) }}
                {%- if not loop.last -%}
                    {{-", " }}
                {%- endif -%}
            {%- endfor -%}
            {{- "}" }}
        {%- else -%}
            {{- "object" }}
        {%- endif -%}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}

{%- macro list_tools(space, tools) -%}
    {{- "## " + space + "

" }}
    {{- "namespace " + space + " {

" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "
" }}
        {{- "type "+ tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties -%}
            {{- "_: " }}
            {{- "{
" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {{- "// " + (spec.description or "nothing said") + "
" }}
                {{- name }}
                {%- if name not in (tool.parameters.required or []) -%}
                    {{- "?" }}
                {%- endif -%}
                {{- ": " }}
                {{- type_of(spec, tool.parameters.required or []) }}
                {%- if spec.default is defined -%}
                    {%- if spec.oneOf %}
                        {{- "// default: " + spec.default }}
                    {%- else %}
                        {{- ", // default: " + spec.default|tojson }}
                    {%- endif -%}
                {%- endif -%}
                {%- if not loop.last %}
                    {{- ",
" }}
                {%- endif -%}
            {%- endfor %}
            {{- ",
}) => any;
" }}
        {%- else -%}
            {{- "
}) => any;
" }}
        {%- endif -%}
    {%- endfor %}
    {{- "
} // namespace " + space }}
{%- endmacro -%}

{%- macro list_builtin_tools(browser_tool, python_tool) -%}
    {%- if browser_tool %}
        {{- "## browser

" }}
        {{- "// Cite like this: `\u3010{cursor}\u2020L{line_start}(-L{line_end})?\u3011`.
" }}
    {%- endif -%}

    {%- if python_tool %}
        {{- "## python

" }}
        {{- "Runs code; files lie in '/mnt/data'.

" }}
    {%- endif -%}
{%- endmacro -%}

{#- The system message ============================================ #}
{%- macro system_message() -%}
    {%- if model_identity is not defined %}
        {%- set model_identity = "You are a test assistant." %}
    {%- endif %}
    {{- model_identity + "
" }}
    {{- "Date: " + strftime_now("%Y-%m-%d") + "

" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Reasoning: " + reasoning_effort + "

" }}
    {%- if builtin_tools %}
        {{- "# Tools

" }}
        {%- set available = namespace(browser=false, python=false) %}
        {%- for tool in builtin_tools %}
            {%- if tool == "browser" %}
                {%- set available.browser = true %}
            {%- elif tool == "python" %}
                {%- set available.python = true %}
            {%- endif %}
        {%- endfor %}
        {{- list_builtin_tools(available.browser, available.python) }}
    {%- endif -%}
    {{- "# Channels: analysis, commentary, final.
" }}
    {{- "Calls go to commentary." }}
{%- endmacro -%}

{#- The conversation ================================================= #}
{#- Defaults #}

{{- "<|start|>system<|message|>" }}
{{- system_message() }}
{{- "<|end|>" }}

{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}

{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}
        {{- "# Instructions

" }}
        {{- developer_message }}
    {%- endif %}
    {%- if tools -%}
        {{- "

" }}
        {{- "# Tools

" }}
        {{- list_tools("functions", tools) }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}

{%- set last_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {#- Only assistant, user and tool are left #}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message %}
            {%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}
                {{- raise_exception("Pass what is thought in 'thinking' and what is said in 'content', not in <|channel|> tags.") }}
            {%- endif %}
        {%- endif %}
        {%- if "thinking" in message %}
            {%- if "<|channel|>analysis<|message|>" in message.thinking %}
                {{- raise_exception("No <|channel|> tags in 'thinking'.") }}
            {%- endif %}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("A call with content and thinking!") }}
            {%- elif message.content %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- elif message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=" }}
            {{- "functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments|tojson }}
            {{- "<|end|>" }}
            {%- set last_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {#- The end of the answer, which only training sees #}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_call.name is none %}
            {{- raise_exception("A tool's message without a call before it!") }}
        {%- endif %}
        {{- "<|start|>functions." + last_call.name }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}

{#- The answer #}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place, \u00b0C; \"now\" or later",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City, e.g. K\u00f6ln <DE> & '\u6771\u4eac'"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": "integer", "default": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "box": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}},
                "required": ["lat"]},
        "when": {"oneOf": [{"type": "string", "nullable": True}, {"type": "number"}]}},
        "required": ["place"]}, "return": {"type": "string"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {}, "x": [1, 2.5, 1e-7, 1e22, True, None, {"z": 1, "a": []}]}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "  Be brief.\n"}
CONVERSATIONS = {
    "one": [user("Hello, \u4e16\u754c! \U0001f600")],
    "system": [SYSTEM, user(" padded \n"), assistant("  Yes.  "), user("And \"quotes\", <b>&amp;</b>?")],
    "thinking": [user("Why?"), assistant("<think>\nBecause\nof x\n</think>\n\nSo."), user("Really?"),
                 assistant("\n<think>\nhm\n</think>\n\nYes.", reasoning_content=None)],
    "reasoning": [user("Why?"), assistant("So.", reasoning_content="\nI see\n")],
    "tools": [SYSTEM, user("Weather?"), assistant(None, tool_calls=[call("get_weather", {"place": "K\u00f6ln", "days": 2})]),
              {"role": "tool", "content": "12 \u00b0C", "tool_call_id": "abcdefghi"}, assistant("12 degrees."), user("Thanks")],
    "two-calls": [user("Both"), assistant("", tool_calls=[call("add", {"x": 1}), call("get_weather", {"place": "\u6771\u4eac", "tags": ["a", "b"], "f": 1.0}, "123456789")]),
                  {"role": "tool", "content": "1", "tool_call_id": "abcdefghi"},
                  {"role": "tool", "content": "2", "tool_call_id": "123456789"}],
    "channels": [{"role": "developer", "content": "Use tools."}, user("Weather?"),
                 assistant("", thinking="Where?", tool_calls=[call("get_weather", {"place": "K\u00f6ln", "tags": ["a"]})]),
                 {"role": "tool", "content": "12 \u00b0C", "tool_call_id": "abcdefghi"},
                 assistant("12 degrees.", thinking="Said.")],
    "tagged": [user("Why?"), assistant("<|channel|>final<|message|>So.")],
    "parts": [user([{"type": "text", "text": " What is this? "}, {"type": "image"}]), assistant("A cat."),
              user([{"type": "text", "text": "Sure?"}])],
    "bad-order": [assistant("I speak first"), user("No"), user("Twice")],
    "empty": [],
}

VARIABLES = {
    "plain": {}, "no-thinking": {"enable_thinking": False}, "date": {"date_string": "01 Feb 2025"},
    "effort": {"reasoning_effort": "high", "model_identity": "You are \"it\".", "builtin_tools": ["browser", "python"]},
    "builtin": {"builtin_tools": ["search", "interpreter", "maps"], "tools_in_user_message": False},
}
