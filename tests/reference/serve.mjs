// Asks the agent of `mcprl serve --mcp` through the TypeScript MCP SDK (see serve.sh): `node serve.mjs SDK MCPRL SUBJECT [OPTION…]`.
// SDK is the folder of @modelcontextprotocol/sdk. Prints the answers as JSON.
import { pathToFileURL } from "node:url";

const [sdk, command, ...subject] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${sdk}/dist/esm/client/${file}.js`));
const [{ Client }, { StdioClientTransport }] = await Promise.all([load("index"), load("stdio")]);

const client = new Client({ name: "serve.mjs", version: "1" });
await client.connect(new StdioClientTransport({ command, args: ["serve", ...subject, "--mcp"] }));
const { tools } = await client.listTools();
if (tools.length !== 1 || tools[0].name !== "ask") throw new Error(JSON.stringify(tools));
const answers = [];
let progress = 0;
for (const task of JSON.parse(process.env.QUESTIONS)) {
  const asked = { name: "ask", arguments: { task, calls: true } };
  const result = await client.callTool(asked, undefined, { onprogress: () => (progress += 1), timeout: 600_000 });
  answers.push([result.content[0].text, result.structuredContent.calls.length]);
}
const wrong = await client.callTool({ name: "ask", arguments: { tusk: "x" } }).catch((error) => error);
if (!(wrong instanceof Error) && !wrong.isError) throw new Error(`a wrong argument is accepted: ${JSON.stringify(wrong)}`);
if (progress === 0) throw new Error("no progress was reported");
await client.close();
console.log(JSON.stringify(answers));
