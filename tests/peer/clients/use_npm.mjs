// The clients of npm, by the first argument: openai, or ai (the AI SDK). What is asked is in PEER_ASK (checks.py).
import assert from 'node:assert';
import { createRequire } from 'node:module';

const { URL: url, MODEL: model, NOBODY, COLOURS, GATES, MESSAGES, TOOL, RESULT } = JSON.parse(process.env.PEER_ASK);
const found = createRequire(`${process.cwd()}/`);

async function openai() {
  const { default: OpenAI } = found('openai');
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  const ask = (body) => client.chat.completions.create({ model, messages: MESSAGES, max_tokens: 60, ...body });
  const schema = { type: 'object', properties: { colour: { type: 'string', enum: COLOURS } }, required: ['colour'] };
  return {
    async chat() {
      const answer = await ask({ max_tokens: 12 });
      assert(answer.choices[0].message.content);
      assert(answer.usage.prompt_tokens > 1000);
    },
    async stream() {
      let text = '';
      for await (const chunk of await ask({ max_tokens: 12, stream: true })) text += chunk.choices[0]?.delta?.content ?? '';
      assert.equal(text, (await ask({ max_tokens: 12 })).choices[0].message.content);
    },
    async tools() {
      const first = (await ask({ tools: [TOOL], tool_choice: 'required' })).choices[0].message;
      const call = first.tool_calls[0];
      assert(GATES.includes(JSON.parse(call.function.arguments).gate));
      const result = { role: 'tool', tool_call_id: call.id, content: RESULT };
      const second = await ask({ tools: [TOOL], tool_choice: 'none', messages: [...MESSAGES, first, result] });
      assert(second.choices[0].message.content);
    },
    async structured() {
      const format = { type: 'json_schema', json_schema: { name: 'colour', strict: true, schema } };
      const answer = await ask({ response_format: format });
      assert(COLOURS.includes(JSON.parse(answer.choices[0].message.content).colour));
    },
    async error() {
      const refused = await ask({ model: NOBODY }).then(() => null, (error) => error);
      assert(refused instanceof OpenAI.NotFoundError && refused.message.includes(NOBODY), String(refused));
    },
  };
}

async function ai() {
  const { generateText, streamText, tool, Output, stepCountIs } = await import(found.resolve('ai'));
  const { createOpenAICompatible } = await import(found.resolve('@ai-sdk/openai-compatible'));
  const { z } = await import(found.resolve('zod'));
  const provider = createOpenAICompatible({
    name: 'skim', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true,
  });
  const asked = { messages: MESSAGES, maxOutputTokens: 60, maxRetries: 0, model: provider(model) };
  return {
    async chat() {
      const answer = await generateText(asked);
      assert(answer.text);
      assert(answer.usage.inputTokens > 1000);
    },
    async stream() {
      let text = '';
      for await (const part of streamText(asked).textStream) text += part;
      assert.equal(text, (await generateText(asked)).text);
    },
    async tools() {
      const calls = [];
      const execute = async ({ gate }) => { calls.push(gate); return RESULT; };
      const lookUp = tool({ description: 'The code of a gate.', inputSchema: z.object({ gate: z.enum(GATES) }), execute });
      const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' });
      const answer = await generateText({ ...asked, tools: { lookUp }, prepareStep, stopWhen: stepCountIs(2) });
      assert(GATES.includes(calls[0]));
      assert(answer.text);
    },
    async structured() {
      const output = Output.object({ schema: z.object({ colour: z.enum(COLOURS) }) });
      assert(COLOURS.includes((await generateText({ ...asked, output })).output.colour));
    },
    async error() {
      const refused = await generateText({ ...asked, model: provider(NOBODY) }).then(() => null, (error) => error);
      assert(refused?.statusCode === 404 && refused.message.includes(NOBODY), String(refused));
    },
  };
}

const checks = await { openai, ai }[process.argv[2]]();
const outcomes = {};
for (const name of ['chat', 'stream', 'tools', 'structured', 'error']) {
  try {
    await checks[name]();
    outcomes[name] = 'passed';
  } catch (error) {
    console.error(error);
    outcomes[name] = `${error.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(outcomes));
